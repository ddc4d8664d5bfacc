// Strong index types. An index into one table never converts to an index into another.
#pragma once

#include <cstdint>

namespace frametap {

template <class Tag>
struct Id {
  static constexpr uint32_t kNoneRaw = 0xffffffffu;

  constexpr Id() = default;
  constexpr explicit Id(uint32_t raw) : raw_(raw) {}
  constexpr explicit Id(size_t raw) : raw_(static_cast<uint32_t>(raw)) {}
  constexpr explicit Id(int raw) : raw_(static_cast<uint32_t>(raw)) {}

  constexpr bool valid() const { return raw_ != kNoneRaw; }
  constexpr uint32_t raw() const { return raw_; }

  friend constexpr bool operator==(Id a, Id b) { return a.raw_ == b.raw_; }
  friend constexpr bool operator!=(Id a, Id b) { return a.raw_ != b.raw_; }
  friend constexpr bool operator<(Id a, Id b) { return a.raw_ < b.raw_; }

  template <class H>
  friend H AbslHashValue(H h, Id id) {
    return H::combine(std::move(h), id.raw_);
  }

 private:
  uint32_t raw_ = kNoneRaw;
};

using ValueId = Id<struct ValueTag>;    // Graph::values
using NodeId = Id<struct NodeTag>;      // Graph::nodes
using StateId = Id<struct StateTag>;    // Graph::states
using SourceId = Id<struct SourceTag>;  // SourceTable
using ConstId = Id<struct ConstTag>;    // the constant pool of a segment

}  // namespace frametap
