// ReportedOp: an op of the program as reports and messages name it.
#pragma once

#include <string>

#include "ir/graph/graph.h"

namespace frametap::quant {

struct ReportedOp {
  std::string op;     // "aten.conv2d"
  Position position;  // may be unknown
  std::string scope;  // module path, "" if unknown
};

ReportedOp ReportedOpOf(const Node& node);

// "aten.conv2d at forward:12:7"
std::string NameWithPlace(const Node& node);

}  // namespace frametap::quant
