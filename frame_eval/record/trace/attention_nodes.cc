#include "frame_eval/record/trace/attention_nodes.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "frame_eval/record/trace/python_ops.h"

namespace frametap {
namespace {

constexpr char kAttentionOp[] = "frametap::attention";

at::Tensor Attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask, double dropout, bool is_causal, std::optional<double> scale,
                     bool enable_gqa, int64_t switches) {
  const AttentionScope scope(AttentionSwitches::FromNumber(switches));
  return at::scaled_dot_product_attention(query, key, value, mask, dropout, is_causal, scale, enable_gqa);
}

// Ops of ATen, apart from attention itself, whose kernels ask which kinds of attention are on.
constexpr std::array<std::string_view, 3> kAsking = {"aten::_fused_sdp_choice", "aten::_native_multi_head_attention",
                                                     "aten::_transformer_encoder_layer_fwd"};

thread_local const AtenRecorder* noted = nullptr;
thread_local AttentionSwitches switches_at_entry{};

}  // namespace

void NoteAttention(const AtenRecorder& recorder, const AttentionSwitches& at_entry) {
  noted = &recorder;
  switches_at_entry = at_entry;
}

void ForgetAttention(const AtenRecorder& recorder) {
  if (noted == &recorder) noted = nullptr;
}

bool IsAttentionSwitched(const AtenRecorder& recorder) {
  return noted == &recorder && !(AttentionSwitches::Now() == switches_at_entry);
}

std::optional<Break> KeepAttention(Node* node) {
  const std::string& name = node->op->operator_name().name;
  if (name == "aten::scaled_dot_product_attention") {
    static const c10::OperatorHandle under = c10::Dispatcher::singleton().findSchemaOrThrow(kAttentionOp, "");
    node->op = under;
    node->args.push_back(Arg::Const(c10::IValue(AttentionSwitches::Now().AsNumber())));
    return std::nullopt;
  }
  if (name.starts_with("aten::") && std::find(kAsking.begin(), kAsking.end(), name) == kAsking.end())
    return std::nullopt;
  return Break{Reason::unknown_operation, name + " where the kinds of attention are switched"};
}

void RegisterAttentionOp() {
  RegisterPythonOp(
      std::string(kAttentionOp) +
          "(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0.0, bool is_causal=False, "
          "*, float? scale=None, bool enable_gqa=False, int switches=0) -> Tensor",
      c10::DispatchKey::CompositeImplicitAutograd, c10::KernelFunction::makeFromUnboxedRuntimeFunction(&Attention));
}

}  // namespace frametap
