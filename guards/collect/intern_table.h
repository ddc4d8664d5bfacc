// InternTable: keys by number, each once; only the last ones are taken away again.
//   N1  Keys come into the table in the order of their numbers, also into one that has grown. So each key stands in a place
//       that the keys before it left free, and without the last key the table is as it was before.
// The table holds the numbers and half of the hashes: it stays small, and hardly ever looks at a key that is not asked for.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "ir/block_pool.h"
#include "ir/dcheck.h"

namespace frametap {

template <class Key>  // with Hash(), whose upper bits are the best
class InternTable {
 public:
  void Reserve(size_t count) {
    keys_.reserve(count);
    Grow(std::bit_ceil(2 * count));
  }
  // The number of `key`: the next one if it is new.
  std::pair<uint32_t, bool> Add(const Key& key) {
    if (2 * keys_.size() >= slots_.size()) Grow(std::max<size_t>(2 * slots_.size(), 64));
    const uint32_t hash = HashOf(key);
    Slot& slot = slots_[SlotOf(key, hash)];
    if (slot != kEmpty) return {NumberOf(slot), false};
    const auto number = static_cast<uint32_t>(keys_.size());
    slot = SlotFor(hash, number);
    keys_.push_back(key);
    return {number, true};
  }
  std::optional<uint32_t> Find(const Key& key) const {
    if (keys_.empty()) return std::nullopt;
    const Slot slot = slots_[SlotOf(key, HashOf(key))];
    return slot == kEmpty ? std::nullopt : std::optional(NumberOf(slot));
  }
  const Key& KeyAt(uint32_t number) const {
    FT_DCHECK(number < keys_.size());
    return keys_[number];
  }
  size_t size() const { return keys_.size(); }
  void Truncate(size_t count) {
    for (; keys_.size() > count; keys_.pop_back()) {
      const uint32_t hash = HashOf(keys_.back());
      Slot& slot = slots_[SlotOf(keys_.back(), hash)];
      FT_DCHECK(slot == SlotFor(hash, static_cast<uint32_t>(keys_.size() - 1)));  // N1
      slot = kEmpty;
    }
  }

 private:
  // The hash above the number, which is counted from one: an empty table is zeros, which cost least to write.
  using Slot = uint64_t;
  using Slots = std::vector<Slot, PoolAllocator<Slot>>;
  static constexpr Slot kEmpty = 0;
  static Slot SlotFor(uint32_t hash, uint32_t number) { return Slot{hash} << 32 | (number + 1); }
  static uint32_t NumberOf(Slot slot) { return static_cast<uint32_t>(slot) - 1; }
  static uint32_t HashOf(const Key& key) { return static_cast<uint32_t>(key.Hash() >> 32); }
  static uint32_t HashIn(Slot slot) { return static_cast<uint32_t>(slot >> 32); }

  // Where `key` is, or the empty place for it.
  size_t SlotOf(const Key& key, uint32_t hash) const {
    size_t at = hash & (slots_.size() - 1);
    while (slots_[at] != kEmpty && !(HashIn(slots_[at]) == hash && keys_[NumberOf(slots_[at])] == key)) {
      at = (at + 1) & (slots_.size() - 1);
    }
    return at;
  }
  // A table of `size`, a power of two, for the keys that there are.
  void Grow(size_t size) {
    slots_ = Slots(size);
    for (size_t number = 0; number < keys_.size(); ++number) {
      const uint32_t hash = HashOf(keys_[number]);
      slots_[SlotOf(keys_[number], hash)] = SlotFor(hash, static_cast<uint32_t>(number));
    }
  }

  std::vector<Key, PoolAllocator<Key>> keys_;
  Slots slots_;
};

}  // namespace frametap
