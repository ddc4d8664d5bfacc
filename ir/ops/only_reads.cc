#include "ir/ops/only_reads.h"

#include "ir/ops/gives_argument.h"
#include "ir/ops/op_facts.h"
#include "ir/ops/op_rows.h"

namespace frametap {

bool OnlyReads(const c10::OperatorHandle& op, size_t parameter) {
  if (op.schema().arguments()[parameter].alias_info() != nullptr) return false;
  if (OpRowOf(op).Has(ops::kOnlyReads)) return true;
  // Some schemas name one written parameter and not another (running statistics of an `out` form).
  return !FactsOf(op).writes_inputs && GivesArgumentOf(op) == GivesArgument::kNever;
}

std::vector<std::string> OpsOutsideAtenThatOnlyRead() { return OpsWith(ops::kOnlyReads); }

}  // namespace frametap
