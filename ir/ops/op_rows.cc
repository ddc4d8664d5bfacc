#include "ir/ops/op_rows.h"

#include <algorithm>
#include <array>
#include <initializer_list>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ir/ops/size_rules_call.h"

namespace frametap {
namespace ops {
namespace {

// A part of a row, for some overloads.
struct Part {
  const char* overloads;
  uint64_t facts;
  SizeRule* sizes;
  BuiltinOp of_ints = BuiltinOp::kNone;
};

constexpr Part Sizes(SizeRule* rule, const char* overloads = "default") { return {overloads, kNone, rule}; }
constexpr Part For(const char* overloads, uint64_t facts) { return {overloads, facts, nullptr}; }
constexpr Part OfInts(const char* overloads, BuiltinOp op) { return {overloads, kNone, nullptr, op}; }

constexpr Part kParts[] = {
#define OP(name, facts, ...) __VA_ARGS__ __VA_OPT__(, )
#define OP_OF(library, name, facts, ...) OP(name, facts, __VA_ARGS__)
#include "ir/ops/ops.def"
#undef OP
};

struct Row {
  absl::string_view name;
  uint64_t facts;
  uint16_t parts;
  uint16_t first_part = 0;
};

constexpr auto kRows = [] {
  std::array rows = {
#define OP(name, facts, ...) OP_OF(aten, name, facts, __VA_ARGS__)
#undef OP_OF
#define OP_OF(library, name, facts, ...) \
  Row{#library "::" #name, facts, std::initializer_list<Part>{__VA_ARGS__}.size()},
#include "ir/ops/ops.def"
#undef OP
#undef OP_OF
  };
  uint16_t parts = 0;
  for (Row& row : rows) {
    row.first_part = parts;
    parts += row.parts;
  }
  return rows;
}();

constexpr bool IsOutOfOrder(const Row& a, const Row& b) { return a.name >= b.name; }
static_assert(std::adjacent_find(kRows.begin(), kRows.end(), IsOutOfOrder) == kRows.end());  // R1

absl::Span<const Part> PartsOf(const Row& row) { return absl::MakeConstSpan(kParts + row.first_part, row.parts); }

bool Names(const Part& part, absl::string_view overload) {
  const auto words = absl::StrSplit(part.overloads, ' ');
  return std::find(words.begin(), words.end(), overload.empty() ? "default" : overload) != words.end();
}

const Row* Find(absl::string_view name) {
  static const auto* const by_name = [] {
    auto* map = new absl::flat_hash_map<absl::string_view, const Row*>(kRows.size());
    for (const Row& row : kRows) map->emplace(row.name, &row);
    return map;
  }();
  const auto it = by_name->find(name);
  return it == by_name->end() ? nullptr : it->second;
}

}  // namespace
}  // namespace ops

OpRow OpRowOf(const c10::OperatorName& op) {
  absl::string_view name = op.name;
  OpRow found;
  found.in_place = absl::EndsWith(name, "_") && !absl::EndsWith(name, "__");
  if (found.in_place) name.remove_suffix(1);
  const ops::Row* const row = ops::Find(name);
  if (row == nullptr) return found;
  found.facts = row->facts;
  for (const ops::Part& part : ops::PartsOf(*row)) {
    if (!ops::Names(part, op.overload_name)) continue;
    found.facts |= part.facts;
    if (part.sizes != nullptr && !found.in_place) found.sizes = part.sizes;
    if (part.of_ints != BuiltinOp::kNone) found.of_ints = part.of_ints;
  }
  return found;
}

bool IsOfTorch(const c10::OperatorHandle& op) { return absl::StartsWith(op.operator_name().name, "aten::"); }

// A sparse tensor holds its indices and values in tensors, which all ops of the family hand on as they like.
static bool IsOfSparseFamily(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  return absl::StartsWith(name, "aten::sparse_") || absl::StartsWith(name, "aten::_sparse_");
}

bool SharesMemoryUnseen(const c10::OperatorHandle& op) {
  return OpRowOf(op).Has(ops::kSharesMemory) || IsOfSparseFamily(op);
}

std::vector<std::string> OpsWith(ops::Fact fact) {
  std::vector<std::string> names;
  for (const ops::Row& row : ops::kRows) {
    if ((row.facts & fact) != 0) names.emplace_back(row.name);
    for (const ops::Part& part : ops::PartsOf(row)) {
      if ((part.facts & fact) == 0) continue;
      for (const absl::string_view overload : absl::StrSplit(part.overloads, ' ')) {
        names.push_back(overload == "default" ? std::string(row.name) : absl::StrCat(row.name, ".", overload));
      }
    }
  }
  return names;
}

}  // namespace frametap
