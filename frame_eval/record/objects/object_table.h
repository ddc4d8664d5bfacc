// ObjectTable: from objects, by address, to their records. A recording looks up a dozen objects for each instruction
// that it follows, and soon forgets a third of them: the tuples, dicts and methods of calls.
//   T1  Linear probing in a table that is at most half full, so that who is not there is missed at once as well.
//   T2  A vacated place is filled by an entry that collided with it: no tombstones are left behind.
#pragma once

#include <Python.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "ir/block_pool.h"
#include "ir/dcheck.h"

namespace frametap {

struct ObjectRecord;

class ObjectTable {
 public:
  struct Entry {
    PyObject* object = nullptr;  // borrowed; null: vacant
    ObjectRecord* known = nullptr;
  };

  ObjectRecord* Find(const PyObject* object) const {
    for (size_t at = HomeOf(object);; at = After(at)) {
      if (entries_[at].object == object) return entries_[at].known;
      if (entries_[at].object == nullptr) return nullptr;
    }
  }

  void Set(PyObject* object, ObjectRecord* known) {
    size_t at = HomeOf(object);
    while (entries_[at].object != nullptr && entries_[at].object != object) at = After(at);
    if (entries_[at].object == nullptr) ++size_;
    entries_[at] = {object, known};
    if (2 * size_ > entries_.size()) Grow();
    FT_DCHECK(2 * size_ <= entries_.size());  // T1
  }

  void Erase(const PyObject* object) {
    size_t at = HomeOf(object);
    while (entries_[at].object != object) {
      if (entries_[at].object == nullptr) return;
      at = After(at);
    }
    FT_DCHECK(size_ > 0);
    --size_;
    for (size_t next = After(at); entries_[next].object != nullptr; next = After(next)) {
      // Entries found from `at` onwards may stand there.
      const size_t way = (next - HomeOf(entries_[next].object)) & mask();
      if (way >= ((next - at) & mask())) entries_[std::exchange(at, next)] = entries_[next];
    }
    entries_[at] = Entry();
  }

  // In no order that means anything.
  template <class Visit>
  void ForEach(Visit visit) const {
    for (const Entry& entry : entries_) {
      if (entry.object != nullptr) visit(entry.object, *entry.known);
    }
  }

  size_t size() const { return size_; }

 private:
  using Entries = std::vector<Entry, PoolAllocator<Entry>>;
  static constexpr int kLeastBits = 8;

  size_t mask() const { return entries_.size() - 1; }
  size_t After(size_t at) const { return (at + 1) & mask(); }
  // Fibonacci hashing: the low bits of an address say little, the high bits of its product all.
  size_t HomeOf(const PyObject* object) const {
    return reinterpret_cast<uintptr_t>(object) * uint64_t{0x9e3779b97f4a7c15} >> shift_;
  }

  void Grow() {
    const Entries old = std::exchange(entries_, Entries(2 * entries_.size()));
    --shift_;
    size_ = 0;
    for (const Entry& entry : old) {
      if (entry.object != nullptr) Set(entry.object, entry.known);
    }
  }

  Entries entries_ = Entries(size_t{1} << kLeastBits);  // a power of two
  int shift_ = 64 - kLeastBits;
  size_t size_ = 0;
};

}  // namespace frametap
