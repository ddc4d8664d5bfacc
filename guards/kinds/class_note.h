// ClassNote: what can be found in a class, as it was when something was read of it. The version of a class (watch.h) is the
// quick answer; where it differs, the class is looked at again.
//   N1  The class is the same for a reader of some names if its MRO is the same. Each class of it must also have the
//       very same object, or still nothing, under each of these names.
//   N2  The names that Python itself looks up (`__eq__`, …) count for each reader. A name that was never asked for does not.
//   N3  Functions, descriptors, classes, plain values and containers of these values are held, so that they can be compared.
//       Another value counts as changed once its class has been changed in any way, and is not kept alive.
//   N4  Looking again runs no Python code.
//   N5  An int that was seen to change (class_counters.h) may differ for a reader that has left it open.
#pragma once

#include <Python.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "guards/ref.h"
#include "ir/block_pool.h"

namespace frametap {

// Names by which a recording may have asked a class for something: those in its code, and computed ones.
class NamesRead : public Pooled {
 public:
  void Add(PyObject* name) {
    // Names are small objects of several sizes: the low bits alone would put many of them into one place.
    const uintptr_t address = reinterpret_cast<uintptr_t>(name) >> 4;
    PyObject*& recent = recent_[(address ^ (address >> 8)) % recent_.size()];
    if (recent == name) [[likely]]
      return;
    recent = name;
    AddNew(name);
  }
  void AddOf(PyCodeObject* code) {
    PyCodeObject*& recent = recent_codes_[(reinterpret_cast<uintptr_t>(code) >> 5) % recent_codes_.size()];
    if (recent == code) [[likely]]
      return;
    recent = code;
    AddNewCode(code);
  }
  bool Has(PyObject* name) const;  // a str

  // An int of this class is read, and a guard of its own says so if it is open.
  void AddInt(PyTypeObject* type, PyObject* name, bool is_open);
  // Returns whether another int under this name makes no difference: it was not asked for, or each read of it is open.
  bool LeavesOut(PyTypeObject* type, PyObject* name) const;

 private:
  struct IntRead {
    PyTypeObject* type;  // borrowed: who asks has a note of it
    PyObject* name;
    bool is_open;
  };
  void AddNew(PyObject* name);
  void AddNewCode(PyCodeObject* code);

  // Filters before the sets: layers ask for the same few names again and again.
  std::array<PyObject*, 256> recent_{};
  std::array<PyCodeObject*, 32> recent_codes_{};
  absl::flat_hash_set<PyCodeObject*> codes_;
  absl::flat_hash_set<PyObject*> names_;
  std::vector<IntRead> ints_;
  std::vector<Ref<>> kept_;  // codes and names
};

class ClassNote {
 public:
  // The part of a note that a guard holds. The content is one Python object for all of them, for the garbage
  // collection.
  struct Held {
    std::shared_ptr<ClassNote> note;
    Ref<> content;
  };
  static Held Of(PyTypeObject* type);

  bool IsSame(const NamesRead& names);

 private:
  static std::shared_ptr<ClassNote> Make(PyTypeObject* type, Ref<>* content);
  bool OwnIsSame(const NamesRead& names);

  PyTypeObject* type_ = nullptr;  // borrowed: whoever holds the note holds it
  PyObject* content_ = nullptr;   // borrowed likewise: (MRO, own attributes, contents of the bases' notes …)
  uint64_t own_version_ = 0;      // of the dict of the class, when all in it was as noted
  uint32_t version_ = 0;          // of the class, when all was as noted
  std::vector<std::shared_ptr<ClassNote>> bases_;  // the classes after it in the MRO that can be changed
};

}  // namespace frametap
