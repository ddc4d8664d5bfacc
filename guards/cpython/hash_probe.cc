#include "guards/cpython/hash_probe.h"

#include <cstdint>

#include "guards/cpython/watch.h"
#include "guards/ref.h"

namespace frametap {
namespace {

// CPython's _dictkeysobject from its start to its hash table. The table holds places of entries.
struct DictKeysTable {
  Py_ssize_t refcnt;
  uint8_t log2_size;
  uint8_t log2_index_bytes;
  uint8_t kind;
  uint32_t version;
  Py_ssize_t usable, entry_count;
  // Followed by 2 ** log2_size places, of a size that depends on their number.

  static const DictKeysTable& Of(PyObject* dict) {
    return *reinterpret_cast<const DictKeysTable*>(&DictKeysPrefix::Of(dict));
  }

  size_t mask() const { return (size_t{1} << log2_size) - 1; }

  Py_ssize_t place(size_t slot) const {
    const void* const table = this + 1;
    switch (log2_index_bytes - log2_size) {
      case 0:
        return static_cast<const int8_t*>(table)[slot];
      case 1:
        return static_cast<const int16_t*>(table)[slot];
      case 2:
        return static_cast<const int32_t*>(table)[slot];
      default:
        return static_cast<Py_ssize_t>(static_cast<const int64_t*>(table)[slot]);
    }
  }
};

constexpr Py_ssize_t kEmpty = -1;
constexpr int kPerturbationShift = 5;
constexpr size_t kPerturbedSteps = 64 / kPerturbationShift + 1;  // after them the steps pass each slot once

// A build of Python with another layout must give slow look-ups, not wrong ones. All keys collide, in tables with places of
// one, two and four bytes, and one of them is deleted.
bool IsAsExpected() {
  if (!DictKeysPrefix::IsAsExpected()) return false;
  constexpr Py_ssize_t kKeys = 4;
  const auto hash_of = [](Py_ssize_t i) { return i << 20; };
  for (const Py_ssize_t capacity : {kKeys, Py_ssize_t{1000}, Py_ssize_t{50'000}}) {
    const Ref<> dict = Ref<>::Steal(_PyDict_NewPresized(capacity));
    for (Py_ssize_t i = 1; i <= kKeys; ++i) {
      const Ref<> key = Ref<>::Steal(PyLong_FromSsize_t(hash_of(i)));
      const bool is_there = dict && key && PyDict_SetItem(dict.get(), key.get(), Py_None) == 0;
      if (!is_there || (i == 1 && PyDict_DelItem(dict.get(), key.get()) < 0)) return PyErr_Clear(), false;
    }
    for (Py_ssize_t i = 2; i <= kKeys; ++i) {
      HashProbe probe(dict.get(), hash_of(i));
      Py_ssize_t place = -1;
      while (place != i - 1) {
        if (!probe.Next(&place)) return false;
      }
    }
  }
  return true;
}

}  // namespace

bool HashProbe::Serves(PyObject* dict) {
  static const bool is_as_expected = IsAsExpected();
  return is_as_expected && DictKeysPrefix::Of(dict).kind == 0;
}

HashProbe::HashProbe(PyObject* dict, Py_hash_t hash)
    : dict_(dict),
      slot_(static_cast<size_t>(hash) & DictKeysTable::Of(dict).mask()),
      perturbation_(static_cast<size_t>(hash)),
      steps_left_(kPerturbedSteps + DictKeysTable::Of(dict).mask() + 1) {}

bool HashProbe::Next(Py_ssize_t* place) {
  const DictKeysTable& keys = DictKeysTable::Of(dict_);
  for (; steps_left_ > 0; --steps_left_) {
    *place = keys.place(slot_);
    if (*place == kEmpty) return false;
    perturbation_ >>= kPerturbationShift;
    slot_ = (slot_ * 5 + perturbation_ + 1) & keys.mask();
    if (*place < 0) continue;  // a deleted entry
    --steps_left_;
    return true;
  }
  return false;
}

}  // namespace frametap
