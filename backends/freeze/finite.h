// Finite: NaN and infinity in frozen graphs. Kernels of oneDNN do not pass them on as torch's ops do: `max(NaN, 0)` is 0 on
// x86, and a product of bfloat16 may take in a neighbour times 0.
//   N1  A call with an input that may bring NaN or infinity to such a kernel runs as it was recorded. Minus infinity in a mask
//       does not count: an input may be a mask if it is added to something, and no op computes with it.
//   N2  Ops may make NaN of finite numbers (a logarithm, softmax of a row that a mask hides). No kernel after them takes a
//       curve that loses NaN.
//   N3  Sums that leave float32's range inside of a kernel are not found.
// Not here: bytes, which have neither (backends/quant).
#pragma once

#include <ATen/core/ivalue.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backends/quant/curves.h"
#include "backends/quant/normalise.h"
#include "ir/graph/graph.h"

namespace frametap::freeze {

enum class Elements : uint8_t {
  kFinite,
  kMinusInfinity,  // finite or minus infinity, as in a mask
  kAny,
};

// By value of the graph: whether ops compute with it. Others are masks, or may be: they are added, or select elements.
std::vector<bool> ComputedWith(const Graph& graph);

// N2. By value of the graph, for inputs that pass N1 and with the weights as they are.
std::vector<Elements> ElementsOf(const quant::NormalizedGraph& normal, const std::vector<bool>& computed_with);

// Whether the curve of a kernel turns NaN or infinity into something else than torch's op does.
bool LosesNaN(const quant::CurveOp& curve, bool is_transposed);

struct CheckedInput {
  size_t index;
  bool may_be_mask;  // minus infinity passes
};

// N1. `lossy`: the results of kernels that lose NaN.
std::vector<CheckedInput> InputsToCheck(const quant::NormalizedGraph& normal, const std::vector<bool>& computed_with,
                                        const std::vector<ValueId>& lossy);

bool AreFinite(const std::vector<CheckedInput>& checked, const std::vector<c10::IValue>& inputs);

}  // namespace frametap::freeze
