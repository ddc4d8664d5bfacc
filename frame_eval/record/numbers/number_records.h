// NumberRecords: the numbers of a recording that may differ from call to call, and what is known of sizes.
//   N1  All facts here follow from graph values and sources. Forget drops those that rest on values or sources after a
//       mark, and which sizes were read, as they are read again. It drops nothing else.
// Not here: arithmetic (numbers.h, sizes.h), the way of a number to an op (symbolic_args.h).
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "frame_eval/interpreter/shadow.h"
#include "ir/symbols/size_expr.h"

namespace frametap {

enum class OpenNumbers : uint8_t {
  kNone,      // all are constants
  kChanging,  // those are open for whose value a segment has missed; sizes and results are constants
  kAll,
};

// An int that is a shadow or a constant.
struct IntTerm {
  Shadow shadow;         // kNone: `constant`
  int64_t constant = 0;  // counts without a shadow only
  static IntTerm Of(int64_t constant) { return {Shadow(), constant}; }
  static IntTerm Of(Shadow shadow) { return {shadow, 0}; }
  bool is_constant() const { return shadow.kind == Shadow::Kind::kNone; }
  std::pair<int, int64_t> Key() const {
    return {static_cast<int>(shadow.kind), is_constant() ? constant : int64_t{shadow.id}};
  }
  bool operator==(const IntTerm& other) const { return Key() == other.Key(); }
};

struct NumberRecords {
  explicit NumberRecords(OpenNumbers open) : open(open) {}

  bool any_open() const { return open != OpenNumbers::kNone; }
  bool sizes_open() const { return open == OpenNumbers::kAll; }
  // Drops what rests on sources from `sources` on, or on values from `values` on (N1).
  void Forget(size_t sources, size_t values);

  const OpenNumbers open;                              // which may differ for a graph
  absl::flat_hash_map<uint32_t, SourceId> inputs;      // graph inputs that are numbers: ValueId -> source
  absl::flat_hash_map<uint32_t, ValueId> values;       // the other way round
  absl::flat_hash_map<uint32_t, c10::IValue> results;  // by ValueId: what graph values of numbers came to
  absl::flat_hash_map<std::tuple<BuiltinOp, std::pair<int, int64_t>, std::pair<int, int64_t>>, Shadow> int_ops;
  absl::flat_hash_set<ValueId> not_negative;                               // of values of ints
  absl::flat_hash_map<std::pair<uint32_t, int64_t>, Shadow> traced_sizes;  // of a value, along a dimension
  struct RuledSizes {
    std::vector<std::optional<SizeExpr>> of_dims;
    size_t naturals = 0;  // how many of `not_negative` there were
  };
  std::unordered_map<uint32_t, RuledSizes> ruled_sizes;   // of a value
  absl::flat_hash_set<ValueId> sizes_read, strides_read;  // values whose sizes follow from guarded facts
};

}  // namespace frametap
