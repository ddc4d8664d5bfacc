#include "ir/ops/gives_argument.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace frametap {
namespace {

// Composite ops that make a new tensor (a view at least) of whatever they are given. By the alphabet.
constexpr absl::string_view kNever[] = {
    "__and__",
    "__or__",
    "__xor__",
    "absolute",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "argsort",
    "avg_pool1d",
    "batch_norm",
    "bilinear",
    "broadcast_to",
    "cdist",
    "clip",
    "column_stack",
    "concat",
    "concatenate",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "cosine_similarity",
    "cross",
    "cross_entropy_loss",
    "diff",
    "divide",
    "dstack",
    "einsum",
    "embedding_bag",
    "expand_as",
    "float_power",
    "greater",
    "greater_equal",
    "group_norm",
    "gru",
    "gru_cell",
    "hstack",
    "inner",
    "instance_norm",
    "isfinite",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "less",
    "less_equal",
    "linear",
    "log_sigmoid",
    "log_softmax",
    "lstm",
    "lstm_cell",
    "mH",
    "mT",
    "matmul",
    "max",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "min",
    "moveaxis",
    "movedim",
    "msort",
    "multiply",
    "narrow",
    "negative",
    "nll_loss_nd",
    "not_equal",
    "numpy_T",
    "one_hot",
    "outer",
    "pad",
    "pairwise_distance",
    "prelu",
    "ravel",
    "relu6",
    "repeat_interleave",
    "reshape",
    "reshape_as",
    "rms_norm",
    "scaled_dot_product_attention",
    "selu",
    "softmax",
    "square",
    "std",
    "subtract",
    "swapaxes",
    "swapdims",
    "take_along_dim",
    "tensordot",
    "tile",
    "true_divide",
    "unflatten",
    "var",
    "view_as",
    "vstack",
    "where",
};
static_assert(std::is_sorted(std::begin(kNever), std::end(kNever)));

constexpr absl::string_view kNeverByPrefix[] = {
    "_upsample_", "fft_", "linalg_", "special_", "upsample_",
};

// `to` and `type_as`: with a memory format, strides decide as well.
constexpr absl::string_view kByType[] = {
    "_autocast_to_full_precision",
    "_autocast_to_reduced_precision",
    "adjoint",
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "cartesian_prod",
    "chain_matmul",
    "conj",
    "conj_physical",
    "flatten",
    "lift_fresh",
    "matrix_H",
    "positive",
    "real",
    "resolve_conj",
    "resolve_neg",
    "to",
    "type_as",
};
static_assert(std::is_sorted(std::begin(kByType), std::end(kByType)));

}  // namespace

GivesArgument GivesArgumentOf(const c10::OperatorHandle& op) {
  absl::string_view name = op.operator_name().name;
  if (absl::StartsWith(name, "frametap::numpy")) return GivesArgument::kNever;  // the schema says it
  if (!absl::ConsumePrefix(&name, "aten::")) return GivesArgument::kByContent;
  if (std::binary_search(std::begin(kByType), std::end(kByType), name)) return GivesArgument::kByType;
  // Kernels of their own give what their schema says.
  if (!op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) return GivesArgument::kNever;
  const auto begins = [name](absl::string_view prefix) { return absl::StartsWith(name, prefix); };
  const bool never = std::binary_search(std::begin(kNever), std::end(kNever), name) ||
                     std::any_of(std::begin(kNeverByPrefix), std::end(kNeverByPrefix), begins);
  return never ? GivesArgument::kNever : GivesArgument::kByContent;
}

}  // namespace frametap
