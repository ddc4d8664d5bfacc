// Attention under switches that the program has set since the entry (with sdpa_kernel(SDPBackend.MATH): …).
//   A1  The node runs the same op under the switches that it ran under.
//   A2  Another op that may ask for the switches ends the segment.
// Not here: the switches (guards/kinds/attention_switches.h), what the exit sets (finish/describe.h).
#pragma once

#include <optional>

#include "frame_eval/segment/reasons.h"
#include "ir/graph/graph.h"

namespace frametap {

class AtenRecorder;

// Returns whether the program has switched attention, and not back.
bool IsAttentionSwitched(const AtenRecorder& recorder);
// A1, A2. For the node of an op that was called while attention is switched.
std::optional<Break> KeepAttention(Node* node);
void RegisterAttentionOp();

}  // namespace frametap
