#include "backends/freeze/schemes.h"

#include <algorithm>
#include <iterator>

#include "backends/freeze/op_traits.h"
#include "backends/onednn/library.h"
#include "backends/quant/annotate.h"

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

}  // namespace frametap::freeze
