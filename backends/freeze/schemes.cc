#include "backends/freeze/schemes.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "backends/freeze/op_traits.h"
#include "backends/onednn/library.h"
#include "backends/quant/annotate.h"
#include "backends/quant/op_table.h"
#include "backends/quant/rewrite.h"

namespace frametap::freeze {
namespace {

constexpr Scheme kSchemes[] = {
    {Products::kFloat32, "frametap::packed_linear", true, true, ""},
    {Products::kBfloat16, "frametap::packed_linear", true, true, "factors of bfloat16"},
    {Products::kDynamicInt8, "frametap::dynamic_linear", false, false, "int8, dynamic"},
};

}  // namespace

const Scheme& InFloat32() { return kSchemes[0]; }

const Scheme& ChooseScheme(const Config& config, const Node& node, std::string* words) {
  const Scheme& asked = *std::find_if(std::begin(kSchemes), std::end(kSchemes),
                                      [&](const Scheme& scheme) { return scheme.products == config.products; });
  *words = quant::FloatByRequest(config.by_request, node);
  if (words->empty() && IsConvolution(node) && !asked.has_convolutions) {
    *words = "in float, packed: a convolution has no dynamic int8 kernel; give quantize calibration data for int8";
  }
  if (!words->empty()) return InFloat32();
  const bool has_products = asked.products != Products::kBfloat16 || onednn::HasBfloat16Products();
  *words = has_products ? asked.words : "in float32: the processor has no products of bfloat16";
  return asked;
}

std::string WhyNotPacked(const quant::NormalizedGraph& normal, const Node& node, const Node* order_reader,
                         std::optional<quant::Convolution>* convolution) {
  const Graph& graph = normal.graph;
  const auto x = quant::TensorArg(node, "input");
  const auto is_float = [&](ValueId v) { return quant::IsFloatTensor(graph.value(v).type); };
  if (quant::IsUnderAutocast(graph, node)) return "it ran under autocast";
  if (!x || !is_float(*x) || !is_float(node.outputs[0])) return "it does not compute in float32 on the CPU";
  const at::Tensor weight = normal.FrozenFloat(node, "weight");
  if (!weight.defined() || weight.numel() == 0) return "its weight is not a parameter or buffer of float32";
  if (!quant::IsNone(quant::FindArg(node, "bias")) && !normal.FrozenFloat(node, "bias").defined()) {
    return "its bias is not a parameter or buffer of float32";
  }
  if (!IsConvolution(node)) return weight.dim() == 2 ? "" : "its weight is not a matrix";
  if (order_reader != nullptr) {
    return absl::StrCat(quant::NameWithPlace(*order_reader), " reads memory in the order in which torch would have it");
  }
  std::string why;
  *convolution = quant::ConvolutionOf(node, graph.value(*x).type.sizes.size(), weight.sizes(), &why);
  return why;
}

}  // namespace frametap::freeze
