#include "ir/passes/writes.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "ir/ops/gives_argument.h"
#include "ir/ops/op_facts.h"

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

// Share memory with an argument, and their schemas do not show it.
bool IsKeptQuiet(absl::string_view name) {
  constexpr absl::string_view kViews[] = {"aten::_unsafe_view", "aten::unsafe_split", "aten::unsafe_split_with_sizes",
                                          "aten::data", "aten::einsum"};
  return std::find(std::begin(kViews), std::end(kViews), name) != std::end(kViews) ||
         absl::StartsWith(name, "aten::sparse_") || absl::StartsWith(name, "aten::_sparse_");
}

// Gives another dtype to the same memory.
bool ReadsAnew(const c10::OperatorName& op) {
  constexpr absl::string_view kOps[] = {"aten::view_as_real", "aten::view_as_complex", "aten::real", "aten::imag"};
  return std::find(std::begin(kOps), std::end(kOps), op.name) != std::end(kOps) ||
         (op.name == "aten::view" && op.overload_name == "dtype");
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
  if (!std::any_of(node.outputs.begin(), node.outputs.end(), may_be_of) && !ReadsAnew(node.op->operator_name())) {
    return false;
  }
  return node.op->schema().arguments()[arg].alias_info() != nullptr ||
         GivesArgumentOf(*node.op) != GivesArgument::kNever || IsKeptQuiet(node.op->operator_name().name);
}

std::vector<bool> WrittenValues(const Graph& graph) {
  std::vector<bool> written(graph.values.size());
  for (const Node& node : graph.nodes) {
    ForEachWritten(node, [&](ValueId value) { NoteWritten(graph, value, &written, [](ValueId) {}); });
  }
  return written;
}

}  // namespace frametap
