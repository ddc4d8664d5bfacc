#include "frame_eval/record/trace/attention_nodes.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <string>

#include "frame_eval/record/trace/aten_recorder.h"
#include "frame_eval/record/trace/python_ops.h"
#include "ir/ops/op_rows.h"

namespace frametap {
namespace {

constexpr char kAttentionOp[] = "frametap::attention";

at::Tensor Attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask, double dropout, bool is_causal, std::optional<double> scale,
                     bool enable_gqa, int64_t switches) {
  const AttentionScope scope(AttentionSwitches::FromNumber(switches));
  return at::scaled_dot_product_attention(query, key, value, mask, dropout, is_causal, scale, enable_gqa);
}

}  // namespace

bool IsAttentionSwitched(const AtenRecorder& recorder) {
  return recorder.attention_at_entry && AttentionSwitches::Now() != *recorder.attention_at_entry;
}

std::optional<Break> KeepAttention(Node* node) {
  static const c10::OperatorHandle attention =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::scaled_dot_product_attention", "");
  static const c10::OperatorHandle under = c10::Dispatcher::singleton().findSchemaOrThrow(kAttentionOp, "");
  if (*node->op == attention) {
    node->op = under;
    node->args.push_back(Arg::Const(c10::IValue(AttentionSwitches::Now().AsNumber())));
    return std::nullopt;
  }
  if (IsOfTorch(*node->op) && !OpRowOf(*node->op).Has(ops::kAsksForAttention)) return std::nullopt;
  return Break{Reason::unknown_operation,
               node->op->operator_name().name + " where the kinds of attention are switched"};
}

void RegisterAttentionOp() {
  RegisterPythonOp(
      std::string(kAttentionOp) +
          "(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0.0, bool is_causal=False, "
          "*, float? scale=None, bool enable_gqa=False, int switches=0) -> Tensor",
      c10::DispatchKey::CompositeImplicitAutograd, c10::KernelFunction::makeFromUnboxedRuntimeFunction(&Attention));
}

}  // namespace frametap
