// The text form of graphs and segments: printer, parser, verifier. Grammar: docs/text_form.md.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ir/graph/graph.h"
#include "ir/segment/segment_ir.h"

namespace frametap {

std::string Print(const Graph& graph, const PrintOptions& options = {});
// With the sizes of the recording as numbers. Parsing gives them back, where `%n` and its like have no value.
std::string PrintWithRecordedSizes(const Graph& graph);
std::string Print(const SegmentIr& segment, const PrintOptions& options = {});
std::string Print(const Operand& operand, const SegmentIr& segment);
std::string Print(const Effect& effect, const SegmentIr& segment);

// kInvalidArgument with "line 3, column 7: expected '=' after %0" on a bad text.
absl::StatusOr<Graph> ParseGraph(std::string_view text);
absl::StatusOr<SegmentIr> ParseSegment(std::string_view text);

// Check graph/G1 to graph/G3, arguments and results against the schema, and that operands name existing values and sources.
// They return kUnimplemented if all is valid except for a constant that has no text, such as a generator.
absl::Status Verify(const Graph& graph);
absl::Status Verify(const SegmentIr& segment);
// Verify for backends, which run graphs with constants that have no text.
absl::Status VerifyRunnable(const Graph& graph);

}  // namespace frametap
