// One node against its schema: what Verify asks of every node and the parser of each as it reads it.
#pragma once

#include "absl/status/status.h"
#include "ir/graph/graph.h"

namespace frametap {

// Argument count and kinds, result count, constants that have a text. Not: order of definitions.
absl::Status VerifyNode(const Graph& graph, const Node& node);

}  // namespace frametap
