#include "guards/kinds/class_counters.h"

#include <algorithm>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "guards/objects/dict_read.h"
#include "guards/ref.h"

namespace frametap {
namespace {

// By the address of the class. Another class at an address of one that is gone has a few more guards for it.
absl::flat_hash_map<PyTypeObject*, std::vector<Ref<>>>& Counters() {
  static auto* const all = new absl::flat_hash_map<PyTypeObject*, std::vector<Ref<>>>();
  return *all;
}

}  // namespace

bool IsClassCounter(PyTypeObject* type, PyObject* name) {
  const auto found = Counters().find(type);
  if (found == Counters().end()) return false;
  return std::any_of(found->second.begin(), found->second.end(),
                     [name](const Ref<>& one) { return one.get() == name || PyUnicode_Compare(one.get(), name) == 0; });
}

PyTypeObject* ClassThatHas(PyTypeObject* type, PyObject* name) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type->tp_mro); ++i) {
    auto* const base = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(type->tp_mro, i));
    PyObject* value = nullptr;
    if (base->tp_dict != nullptr) NameGet(base->tp_dict, name, &value);
    if (value != nullptr) return base;
  }
  return nullptr;
}

void NoteClassCounter(PyTypeObject* type, PyObject* name) {
  if (!IsClassCounter(type, name)) Counters()[type].push_back(Ref<>::New(name));
}

}  // namespace frametap
