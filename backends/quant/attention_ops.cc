#include "backends/quant/attention_ops.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <cmath>

#include "backends/onednn/attention.h"
#include "backends/quant/op_table.h"
#include "backends/quant/operators.h"

namespace frametap::quant {
namespace {

using Optional = std::optional<at::Tensor>;

// As a batch of heads, if the batch is missing. A mask needs no change: it is broadcast from its last dimension on.
at::Tensor Heads(const at::Tensor& x) { return x.dim() == 3 ? x.unsqueeze(0) : x; }

// torch's scaled_dot_product_attention without gradients, by the quickest kernel.
at::Tensor Attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const Optional& mask,
                     double dropout, bool is_causal, std::optional<double> scale, bool enable_gqa) {
  const at::Tensor q = Heads(query), k = Heads(key), v = Heads(value);
  const at::Tensor given = mask.value_or(at::Tensor());
  const bool shares_heads = q.dim() == 4 && k.dim() == 4 && q.size(1) != k.size(1);
  if (dropout != 0 || (is_causal && mask) || (shares_heads && !enable_gqa) || !onednn::CanAttend(q, k, v, given)) {
    return at::scaled_dot_product_attention(query, key, value, mask, dropout, is_causal, scale, enable_gqa);
  }
  onednn::AttentionOptions options;
  options.scale = scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3))));
  options.is_causal = is_causal;
  const at::Tensor result = onednn::Attend(q, k, v, given, options);
  return query.dim() == 3 ? result.squeeze(0) : result;
}

// O1
at::Tensor Bfloat16Attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                             const Optional& mask, double dropout, bool is_causal, std::optional<double> scale,
                             bool enable_gqa) {
  return Attention(query.to(at::kBFloat16), key.to(at::kBFloat16), value.to(at::kBFloat16), mask, dropout, is_causal,
                   scale, enable_gqa)
      .to(query.scalar_type());
}

at::Tensor AttentionMeta(const at::Tensor& q, const at::Tensor&, const at::Tensor& v, const Optional&, double, bool,
                         std::optional<double>, bool) {
  c10::DimVector sizes(q.sizes().begin(), q.sizes().end());
  sizes.back() = v.size(-1);
  return at::empty(sizes, q.options());
}

at::Tensor ChainMeta(const at::Tensor& q, const at::Tensor&, const at::Tensor& v, const Optional&, double, double) {
  return AttentionMeta(q, q, v, std::nullopt, 0, false, std::nullopt, false);
}

// `mask`: of float32, and added; or of bool, and true where a score becomes `fill`, which is not zero.
at::Tensor Chain(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const Optional& mask,
                 double fill, double scale) {
  const bool is_filled = mask && mask->scalar_type() == at::kBool;
  const at::Tensor q = Heads(query), k = Heads(key), v = Heads(value);
  at::Tensor given = mask.value_or(at::Tensor());
  if (is_filled) given = at::zeros(mask->sizes(), at::kFloat).masked_fill_(*mask, fill);
  const bool has_one = q.dim() == 4 && k.dim() == 4 && (k.size(1) == q.size(1) || k.size(1) == 1);  // by broadcasting
  if (has_one && onednn::CanAttend(q, k, v, given)) {
    onednn::AttentionOptions options;
    options.scale = scale;
    options.mask_replaces = is_filled;
    options.gives_nan = true;  // O2
    const at::Tensor result = onednn::Attend(q, k, v, given, options);
    return query.dim() == 3 ? result.squeeze(0) : result;
  }
  if (!mask) return at::scaled_dot_product_attention(query, key, value, std::nullopt, 0, false, scale);
  const auto floats = [](const at::Tensor& x) { return x.to(at::kFloat); };
  at::Tensor scores = at::matmul(floats(query), floats(key).transpose(-2, -1)).mul_(scale);
  scores = is_filled ? scores.masked_fill(*mask, fill) : scores.add(*mask);
  return at::matmul(scores.softmax(-1), floats(value)).to(query.scalar_type());
}

// O1
at::Tensor Bfloat16Chain(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const Optional& mask,
                         double fill, double scale) {
  return Chain(query.to(at::kBFloat16), key.to(at::kBFloat16), value.to(at::kBFloat16), mask, fill, scale)
      .to(query.scalar_type());
}

}  // namespace

bool IsAttention(const Node& node) {
  return Is(node, "aten::scaled_dot_product_attention") || Is(node, "frametap::attention_chain");
}

bool IsBfloat16Attention(const Node& node) {
  return Is(node, "frametap::bfloat16_attention") || Is(node, "frametap::bfloat16_attention_chain");
}

bool HasDropout(const Node& node) {
  const Arg* const dropout = FindArg(node, "dropout_p");
  return dropout != nullptr && ConstNumber(dropout) != 0.0;
}

c10::OperatorHandle Float32Form(const Node& node) {
  return FindOperator(Is(node, "frametap::attention_chain") ? "frametap::attention_chain"
                                                            : "frametap::scaled_dot_product_attention");
}

c10::OperatorHandle Bfloat16Form(const Node& node) {
  return FindOperator(Is(node, "frametap::attention_chain") ? "frametap::bfloat16_attention_chain"
                                                            : "frametap::bfloat16_attention");
}

void RegisterAttention() {
  auto* defs = new torch::Library(torch::Library::FRAGMENT, "frametap", std::nullopt, __FILE__, __LINE__);
  const std::string call =
      "(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, float dropout_p, bool is_causal, *, float? scale, "
      "bool enable_gqa) -> Tensor";
  defs->def(("scaled_dot_product_attention" + call).c_str());
  defs->def(("bfloat16_attention" + call).c_str());
  const std::string chain =
      "(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, float fill, float scale) -> Tensor";
  defs->def(("attention_chain" + chain).c_str());
  defs->def(("bfloat16_attention_chain" + chain).c_str());
  auto* cpu = new torch::Library(torch::Library::IMPL, "frametap", c10::DispatchKey::CPU, __FILE__, __LINE__);
  cpu->impl("scaled_dot_product_attention", TORCH_FN(Attention));
  cpu->impl("bfloat16_attention", TORCH_FN(Bfloat16Attention));
  cpu->impl("attention_chain", TORCH_FN(Chain));
  cpu->impl("bfloat16_attention_chain", TORCH_FN(Bfloat16Chain));
  auto* meta = new torch::Library(torch::Library::IMPL, "frametap", c10::DispatchKey::Meta, __FILE__, __LINE__);
  meta->impl("scaled_dot_product_attention", TORCH_FN(AttentionMeta));
  meta->impl("bfloat16_attention", TORCH_FN(AttentionMeta));
  meta->impl("attention_chain", TORCH_FN(ChainMeta));
  meta->impl("bfloat16_attention_chain", TORCH_FN(ChainMeta));
}

}  // namespace frametap::quant
