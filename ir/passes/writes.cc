#include "ir/passes/writes.h"

#include <algorithm>

#include "ir/ops/gives_argument.h"
#include "ir/ops/op_rows.h"

namespace frametap {
namespace {

bool IsWritten(const c10::Argument& parameter) {
  return parameter.alias_info() != nullptr && parameter.alias_info()->isWrite();
}

// batch_norm and its relatives write running statistics only when they train.
bool IsInferenceBatchNorm(const c10::FunctionSchema& schema, const Node& node) {
  std::optional<int> index = schema.argumentIndexWithName("training");
  if (!index) index = schema.argumentIndexWithName("train");
  if (!index) return false;
  const Arg& arg = node.args[static_cast<size_t>(*index)];
  return arg.kind == Arg::Kind::kConst && arg.constant.isBool() && !arg.constant.toBool();
}

}  // namespace

bool WritesTo(const Node& node, size_t arg) {
  if (!node.op || !FactsOf(*node.op).writes_inputs) return false;
  const c10::FunctionSchema& schema = node.op->schema();
  const std::vector<c10::Argument>& parameters = schema.arguments();
  if (IsWritten(parameters[arg])) return true;
  // Which argument is written is in the schema for most ops; for the rest any may be.
  if (std::any_of(parameters.begin(), parameters.end(), IsWritten)) return false;
  return !IsInferenceBatchNorm(schema, node);
}

bool MayShareMemory(const Graph& graph, const Node& node, size_t arg, ValueId in) {
  if (!node.op) return node.builtin_op == BuiltinOp::kListItem;
  const Type& from = graph.value(in).type;
  if (from.kind == Type::Kind::kInt || from.kind == Type::Kind::kFloat || from.kind == Type::Kind::kBool) return false;
  const auto may_be_of = [&](ValueId out) {
    const Type& to = graph.value(out).type;
    return to.kind != Type::Kind::kTensor || from.kind != Type::Kind::kTensor || to.dtype == from.dtype;
  };
  const bool has_its_dtype = std::any_of(node.outputs.begin(), node.outputs.end(), may_be_of);
  if (!has_its_dtype && !OpRowOf(*node.op).Has(ops::kReinterprets)) return false;
  return node.op->schema().arguments()[arg].alias_info() != nullptr ||
         GivesArgumentOf(*node.op) != GivesArgument::kNever || SharesMemoryUnseen(*node.op);
}

std::vector<bool> WrittenValues(const Graph& graph) {
  std::vector<bool> written(graph.values.size());
  for (const Node& node : graph.nodes) {
    ForEachWritten(node, [&](ValueId value) { NoteWritten(graph, value, &written, [](ValueId) {}); });
  }
  return written;
}

}  // namespace frametap
