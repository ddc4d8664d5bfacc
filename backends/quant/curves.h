// Curves: elementwise ops that a kernel of oneDNN applies to its result.
// Not here: which kernels take which (lower.cc, backends/freeze).
#pragma once

#include <optional>

#include "backends/onednn/layer.h"
#include "ir/graph.h"

namespace frametap::quant {

struct CurveOp {
  onednn::Curve curve = onednn::Curve::kNone;
  double low = 0, high = 0;  // as in onednn::Layer
};

// The op as a curve; nothing if it is not one, or if its numbers are not constants.
std::optional<CurveOp> CurveOf(const Node& node);

void SetCurve(const CurveOp& op, onednn::Layer* layer);

}  // namespace frametap::quant
