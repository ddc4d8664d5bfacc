// Keys: the keys of a dict in order, or one key that must be there or must not.
//   K1  Both are reads of a dict: a tree takes them together with its other reads of that dict
//       (guard_tree/V3).
#pragma once

#include "guards/kinds/guard.h"

namespace frametap {

// Returns a tuple of the keys as the program sees them: an OrderedDict's own order may differ from the order of the table
// below it. The tuple is shorter than an OrderedDict that was changed by methods of dict.
Ref<> KeysInOrder(PyObject* dict);

class KeysGuard : public Guard {
 public:
  explicit KeysGuard(PyObject* dict);

  // An OrderedDict can change its order without a change of its version.
  static bool OrderIsWatched(PyObject* dict);

  Scope scope() const override { return Scope::kContent; }
  bool Holds(const Reached& at) const override;
  Predicate Want() const override;
  std::string Got(const Reached& at) const override;
  std::string Why(const Reached& at) const override;
  int Traverse(visitproc visit, void* arg) const override;

 private:
  Ref<> keys_;       // tuple
  Py_ssize_t size_;  // of the table: dict.__setitem__ leaves an OrderedDict's order behind
};

class KeyGuard : public Guard {
 public:
  KeyGuard(DictOf dict, Key key, bool present)
      : Guard(Kind::kKey), dict_(dict), key_(std::move(key)), present_(present) {}

  DictOf dict() const { return dict_; }
  const Key& key() const { return key_; }
  bool present() const { return present_; }

  Scope scope() const override { return Scope::kContent; }
  bool Holds(const Reached& at) const override;
  Predicate Want() const override;
  std::string Got(const Reached& at) const override;
  std::string Why(const Reached& at) const override;
  int Traverse(visitproc visit, void* arg) const override;

 private:
  DictOf dict_;
  Key key_;
  bool present_;
};

}  // namespace frametap
