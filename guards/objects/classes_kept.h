// ClassesKept: a patch of a class that is taken back leaves no trace. Compilers of torch replace methods of
// torch.nn.Module while they trace, and put them back; without this every guard on a module's class would miss.
//   K1  A class gets its old version back if all results of a look-up in it are the very same objects as before.
//       CPython's caches for that version are then right again.
//   K2  Classes that are changed otherwise, and whatever has such a base, keep their new version.
// Not here: what a version is (watch.h).
#pragma once

#include <Python.h>

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "guards/ref.h"

namespace frametap {

class ClassesKept {
 public:
  // `patched`: classes whose attributes may be replaced until Restore; these and all below them are kept.
  explicit ClassesKept(const std::vector<PyTypeObject*>& patched);
  void Restore();

 private:
  struct Kept {
    Ref<PyTypeObject> type;
    uint32_t version = 0;  // 0 if it had none
    uint64_t attributes = 0;
    Ref<> copy;  // of the attributes, if they may be replaced
  };
  void Keep(PyTypeObject* type, bool is_patched);
  void KeepTree(PyTypeObject* type);
  bool IsAsBefore(PyTypeObject* type) const;

  absl::flat_hash_map<PyTypeObject*, size_t> places_;
  std::vector<Kept> kept_;  // bases before their subclasses
};

}  // namespace frametap
