// Curves: functions of each element. A kernel of oneDNN applies some of them to its result; any of them is a table of 256
// results on bytes.
// Not here: which of them follow a layer (lower.cc, backends/freeze).
#pragma once

#include <optional>

#include "backends/onednn/layer.h"
#include "backends/quant/params.h"
#include "ir/graph/graph.h"

namespace frametap::quant {

struct CurveOp {
  onednn::Curve curve = onednn::Curve::kNone;
  double low = 0, high = 0;  // as in onednn::Layer
};

// The op as a curve; nothing if it is not one, or if its numbers are not constants.
std::optional<CurveOp> CurveOf(const Node& node);

void SetCurve(const CurveOp& op, onednn::Layer* layer);

// The bytes of a frozen tensor.
at::Tensor QuantizeAll(const at::Tensor& tensor, const Params& params);

// By byte of its input: the byte that the op gives, which is a function of each element of its first argument alone. `in`
// and `out`: the parameters of its input and result.
at::Tensor TableOf(const Node& curve, const Params& in, const Params& out);

}  // namespace frametap::quant
