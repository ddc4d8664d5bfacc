#include "guards/objects/classes_kept.h"

#include "guards/cpython/watch.h"
#include "guards/must.h"

namespace frametap {

ClassesKept::ClassesKept(const std::vector<PyTypeObject*>& patched) {
  for (PyTypeObject* type : patched) Keep(type, true);
  for (PyTypeObject* type : patched) KeepTree(type);
}

void ClassesKept::Keep(PyTypeObject* type, bool is_patched) {
  const auto [it, is_new] = places_.try_emplace(type, kept_.size());
  if (!is_new) return;
  PyObject* const mro = type->tp_mro;
  for (Py_ssize_t i = 1; mro != nullptr && i < PyTuple_GET_SIZE(mro); ++i) {
    Keep(reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(mro, i)), false);
  }
  places_[type] = kept_.size();
  Kept kept;
  kept.type = Ref<PyTypeObject>::New(type);
  kept.version = AssignedTypeVersion(type);
  kept.attributes = DictVersion(type->tp_dict);
  if (is_patched) kept.copy = Must(PyDict_Copy(type->tp_dict));
  kept_.push_back(std::move(kept));
}

void ClassesKept::KeepTree(PyTypeObject* type) {
  std::vector<Ref<>> work{Ref<>::New(reinterpret_cast<PyObject*>(type))};
  absl::flat_hash_map<PyObject*, bool> met;
  static PyObject* const name = InternedName("__subclasses__");
  while (!work.empty()) {
    const Ref<> at = std::move(work.back());
    work.pop_back();
    if (!met.try_emplace(at.get(), true).second) continue;
    Keep(reinterpret_cast<PyTypeObject*>(at.get()), false);
    // `type`'s own method: a metaclass may have another.
    const Ref<> subclasses = Must(PyObject_CallMethodOneArg(reinterpret_cast<PyObject*>(&PyType_Type), name, at.get()));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(subclasses.get()); ++i) {
      work.push_back(Ref<>::New(PyList_GET_ITEM(subclasses.get(), i)));
    }
  }
}

bool ClassesKept::IsAsBefore(PyTypeObject* type) const {
  const auto it = places_.find(type);
  if (it == places_.end()) return false;
  const Kept& kept = kept_[it->second];
  if (DictVersion(type->tp_dict) == kept.attributes) return true;
  if (!kept.copy || PyDict_GET_SIZE(kept.copy.get()) != PyDict_GET_SIZE(type->tp_dict)) return false;
  Py_ssize_t at = 0;
  PyObject *key, *value;
  while (PyDict_Next(kept.copy.get(), &at, &key, &value)) {
    if (PyDict_GetItemWithError(type->tp_dict, key) != value) {
      PyErr_Clear();
      return false;
    }
  }
  return true;
}

void ClassesKept::Restore() {
  std::vector<bool> as_before;
  for (const Kept& kept : kept_) {
    PyTypeObject* const type = kept.type.get();
    bool restores = IsAsBefore(type);
    PyObject* const mro = type->tp_mro;
    for (Py_ssize_t i = 1; restores && mro != nullptr && i < PyTuple_GET_SIZE(mro); ++i) {
      const auto base = places_.find(reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(mro, i)));
      restores = base != places_.end() && as_before[base->second];
    }
    as_before.push_back(restores);
    if (restores && kept.version != 0) RestoreTypeVersion(type, kept.version);
  }
}

}  // namespace frametap
