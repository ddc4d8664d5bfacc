#include "ir/ops/plain_function.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "ir/ops/below_autograd.h"

namespace frametap {
namespace {

// By the alphabet.
constexpr absl::string_view kNames[] = {
    "_log_softmax", "_softmax",     "_to_copy",    "abs",         "acos",        "acosh",       "add",
    "addcdiv",      "addcmul",      "addmm",       "all",         "amax",        "amin",        "any",
    "argmax",       "argmin",       "asin",        "asinh",       "atan",        "atan2",       "atanh",
    "baddbmm",      "bitwise_and",  "bitwise_not", "bitwise_or",  "bitwise_xor", "bmm",         "cat",
    "ceil",         "clamp",        "clamp_max",   "clamp_min",   "clone",       "conv1d",      "conv2d",
    "conv3d",       "cos",          "cosh",        "cumsum",      "div",         "elu",         "embedding",
    "eq",           "erf",          "erfc",        "exp",         "exp2",        "expm1",       "flip",
    "floor",        "gather",       "ge",          "gelu",        "gt",          "hardsigmoid", "hardswish",
    "hardtanh",     "index_select", "layer_norm",  "le",          "leaky_relu",  "linear",      "log",
    "log10",        "log1p",        "log2",        "log_softmax", "logical_and", "logical_not", "logical_or",
    "logical_xor",  "logsumexp",    "lt",          "masked_fill", "matmul",      "maximum",     "mean",
    "minimum",      "mish",         "mm",          "mul",         "ne",          "neg",         "pow",
    "prod",         "reciprocal",   "relu",        "remainder",   "repeat",      "round",       "rsqrt",
    "rsub",         "sigmoid",      "sign",        "silu",        "sin",         "sinh",        "softmax",
    "softplus",     "sqrt",         "stack",       "sub",         "sum",         "tan",         "tanh",
    "topk",         "tril",         "triu",        "trunc",       "where",
};
static_assert(std::is_sorted(std::begin(kNames), std::end(kNames)));

}  // namespace

bool IsPlainFunction(const c10::OperatorHandle& op) {
  absl::string_view name = op.operator_name().name;
  return absl::ConsumePrefix(&name, "aten::") && std::binary_search(std::begin(kNames), std::end(kNames), name) &&
         !HasAliases(op.schema()) && HasTorchsKernelOnCpu(op);
}

std::vector<std::string> PlainFunctions() {
  std::vector<std::string> names;
  for (const absl::string_view name : kNames) names.push_back(absl::StrCat("aten::", name));
  return names;
}

}  // namespace frametap
