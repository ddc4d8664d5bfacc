#include "ir/ops/only_reads.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "ir/ops/gives_argument.h"
#include "ir/ops/op_facts.h"

namespace frametap {
namespace {

struct Kernel {
  absl::string_view name;
  absl::string_view overload;
};

// The parameter to which a kernel writes has alias information; it is the only one that may be a result.
constexpr Kernel kKernels[] = {
    {"frametap::dequantize_per_channel", ""},
    {"frametap::dequantize_per_tensor", ""},
    {"frametap::dynamic_linear", ""},
    {"frametap::packed_conv", ""},
    {"frametap::packed_linear", ""},
    {"frametap::qadaptive_avg_pool2d", ""},
    {"frametap::qadd", ""},
    {"frametap::qavg_pool2d", ""},
    {"frametap::qconv", ""},
    {"frametap::qconv_add", ""},
    {"frametap::qcurve", ""},
    {"frametap::qlinear", ""},
    {"frametap::qmax_pool2d", ""},
    {"frametap::qmul", ""},
    {"frametap::quantize_per_tensor", ""},
    {"frametap::quantize_per_tensor_channels_last", ""},
    {"frametap::qupsample_bilinear2d", ""},
    {"frametap::round_rows", ""},
};

bool IsNamed(const c10::OperatorName& op) {
  return std::any_of(std::begin(kKernels), std::end(kKernels),
                     [&](const Kernel& k) { return op.name == k.name && op.overload_name == k.overload; });
}

}  // namespace

bool OnlyReads(const c10::OperatorHandle& op, size_t parameter) {
  if (op.schema().arguments()[parameter].alias_info() != nullptr) return false;
  if (IsNamed(op.operator_name())) return true;
  // Some schemas name one written parameter and not another (running statistics of an `out` form).
  return !FactsOf(op).writes_inputs && GivesArgumentOf(op) == GivesArgument::kNever;
}

std::vector<std::string> OpsOutsideAtenThatOnlyRead() {
  std::vector<std::string> names;
  for (const Kernel& k : kKernels) {
    names.push_back(k.overload.empty() ? std::string(k.name) : absl::StrCat(k.name, ".", k.overload));
  }
  return names;
}

}  // namespace frametap
