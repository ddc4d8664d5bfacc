#include "backends/quant/layouts.h"

#include <c10/core/MemoryFormat.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "backends/quant/op_table.h"
#include "backends/quant/operators.h"
#include "backends/quant/planes.h"

namespace frametap::quant {
namespace {

bool IsLast(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided) return false;
  const at::MemoryFormat format = tensor.suggest_memory_format();
  return format == at::MemoryFormat::ChannelsLast || format == at::MemoryFormat::ChannelsLast3d;
}

bool IsImage(const Type& type) {
  return type.kind == Type::Kind::kTensor && (type.sizes.size() == 4 || type.sizes.size() == 5);
}

void AddOnce(const std::vector<ValueId>& more, std::vector<ValueId>* all) {
  for (const ValueId v : more) {
    if (std::find(all->begin(), all->end(), v) == all->end()) all->push_back(v);
  }
}

// U1, of a node whose result is one image.
std::vector<ValueId> LayoutOf(const NormalizedGraph& normal, const Node& node,
                              const std::vector<std::vector<ValueId>>& known) {
  const Graph& graph = normal.graph;
  const ValueId result = node.outputs[0];
  const Family family = FamilyOf(node);
  if (family == Family::kConv) {
    const auto input = TensorArg(node, "input");
    const auto weight = TensorArg(node, "weight");
    if (!input || !weight) return {result};
    const at::Tensor& tensor = normal.known[weight->raw()];
    if (!tensor.defined() || !IsImage(graph.value(*input).type)) return {result};
    return IsLast(tensor) ? std::vector<ValueId>() : known[input->raw()];
  }
  const bool pads = Is(node, "aten::constant_pad_nd") || (Is(node, "aten::pad") && PadsWithNumber(node));
  if (!(KeepsLayout(node) || pads) || family == Family::kMean) return {result};  // torch's means are contiguous
  std::vector<ValueId> images;
  ForEachUse(node.args, [&](ValueId v) {
    if (IsImage(graph.value(v).type)) images.push_back(v);
  });
  // Where no convolution has a part, images need not be channels_last or contiguous.
  if (std::all_of(images.begin(), images.end(), [&](ValueId v) { return LiesAsMade(v, known[v.raw()]); })) {
    return {result};
  }
  if (family == Family::kCat) {
    std::vector<ValueId> like;
    for (const ValueId v : images) AddOnce(known[v.raw()], &like);
    return like;
  }
  const auto& sizes = graph.value(result).type.sizes;
  const auto first =
      std::find_if(images.begin(), images.end(), [&](ValueId v) { return graph.value(v).type.sizes == sizes; });
  return known[(first == images.end() ? images[0] : *first).raw()];
}

}  // namespace

bool WorksAroundElements(const Node& node) {
  switch (FamilyOf(node)) {
    case Family::kAdd:
    case Family::kMul:
    case Family::kRelu:
    case Family::kCurve:
    case Family::kMaxPool:
    case Family::kAvgPool:
    case Family::kAdaptivePool:
    case Family::kCat:
      return true;
    case Family::kMove:
      return absl::StrContains(node.op->operator_name().name, "upsample");
    default:
      return false;
  }
}

bool KeepsLayout(const Node& node) {
  const Family family = FamilyOf(node);
  return WorksAroundElements(node) || family == Family::kMean || family == Family::kBatchNorm ||
         Is(node, "aten::div", "Tensor");
}

bool LiesAsMade(ValueId v, const std::vector<ValueId>& like) { return like.size() == 1 && like[0] == v; }

std::vector<std::vector<ValueId>> LayoutsOf(const NormalizedGraph& normal) {
  const Graph& graph = normal.graph;
  std::vector<std::vector<ValueId>> layouts(graph.values.size());
  for (size_t v = 0; v < layouts.size(); ++v) layouts[v] = {ValueId(v)};
  for (const Node& node : graph.nodes) {
    if (node.is_scalar() || node.outputs.empty() || !IsImage(graph.value(node.outputs[0]).type)) continue;
    layouts[node.outputs[0].raw()] = LayoutOf(normal, node, layouts);
  }
  return layouts;
}

ValueId LaidOut(ValueId images, const std::vector<ValueId>& like, const Node& reader, Rewrite* out) {
  std::vector<Arg> deciders;
  for (const ValueId v : like) deciders.push_back(Arg::Of(out->at(v)));
  const Value value = out->graph.value(images);
  return out->Emit(FindOperator("frametap::laid_out"), {Arg::Of(images), Arg::List(std::move(deciders))},
                   value.name + "_laid_out", value.type, ValueId(), reader);
}

at::Tensor LayOut(const at::Tensor& images, at::TensorList like) {
  const bool is_image = images.dim() == 4 || images.dim() == 5;
  const bool is_last = is_image && std::all_of(like.begin(), like.end(), IsLast);
  if (!is_last) {
    const at::Tensor planes = Planes(images);
    std::vector<int64_t> strides(static_cast<size_t>(planes.dim()), 1);
    for (size_t i = strides.size(); i-- > 1;)
      strides[i - 1] = strides[i] * std::max<int64_t>(1, planes.size(static_cast<int64_t>(i)));
    return planes.strides().equals(strides) ? planes : planes.as_strided(planes.sizes(), strides);
  }
  const at::MemoryFormat format = images.dim() == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::ChannelsLast3d;
  const at::Tensor last = images.contiguous(format);
  const auto strides = images.dim() == 4 ? c10::get_channels_last_strides_2d(last.sizes())
                                         : c10::get_channels_last_strides_3d(last.sizes());
  return last.strides().equals(strides) ? last : last.as_strided(last.sizes(), strides);
}

}  // namespace frametap::quant
