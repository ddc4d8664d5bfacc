#include "backends/quant/reported_op.h"

#include "absl/strings/str_cat.h"

namespace frametap::quant {

ReportedOp ReportedOpOf(const Node& node) {
  ReportedOp named;
  named.op = node.op_name();
  if (node.where == nullptr) return named;
  named.position = node.where->position;
  if (!node.where->scope.empty()) named.scope = node.where->scope.back().path.str();
  return named;
}

std::string NameWithPlace(const Node& node) {
  const ReportedOp named = ReportedOpOf(node);
  if (!named.position.known()) return named.op;
  // The module's path distinguishes layers; the line of an op inside torch.nn does not.
  if (!named.scope.empty()) return absl::StrCat(named.op, " in ", named.scope);
  return absl::StrCat(named.op, " at ", ToString(named.position));
}

}  // namespace frametap::quant
