// Changes: the tensors from before that a run of a segment writes to, and the facts of its inputs by which ops raise.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_set.h"

namespace frametap {

struct Segment;

// A replay copies no more than this to be able to take back an op that refuses some elements (rollback.h).
inline constexpr size_t kMostBytesCopied = 4 << 20;

// Facts of the inputs, other than elements, by which ops raise or not. Returns a hash.
uint64_t SizesOf(const Segment& segment, const std::vector<c10::IValue>& inputs);

// For a segment whose graph changes older tensors: the copies that a rollback needs, and whether ops refuse elements.
// `written` is null if not all of it is known.
void DescribeChanges(Segment& segment, const absl::flat_hash_set<c10::StorageImpl*>* written);

}  // namespace frametap
