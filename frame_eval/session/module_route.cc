#include "frame_eval/session/module_route.h"

#include <algorithm>

#include "frame_eval/record/fast_paths/module_calls.h"
#include "guards/cpython/watch.h"
#include "guards/kinds/no_hooks.h"
#include "guards/objects/well_known_objects.h"
#include "guards/throw_if_null.h"

namespace frametap {
namespace {

// Gives null where a call does not come down to the `forward` of the class. Adds the words that this rests on.
PyObject* FindForward(PyObject* module, Words* words) {
  static PyObject* const kGlobal[] = {InternedName("_global_forward_hooks"), InternedName("_global_forward_pre_hooks"),
                                      InternedName("_global_backward_hooks"),
                                      InternedName("_global_backward_pre_hooks")};
  static PyObject* call_name = InternedName("__call__");
  static PyObject* forward_name = InternedName("forward");
  static PyObject* compiled_name = InternedName("_compiled_call_impl");
  static PyObject* impl_name = InternedName("_call_impl");
  static PyObject* plain_impl = _PyType_Lookup(Objects().module, impl_name);
  PyTypeObject* type = Py_TYPE(module);
  PyObject* call = _PyType_Lookup(type, call_name);
  if (call == nullptr || call != Objects().module_call) return nullptr;  // torch.fx replaces it for a while
  const auto own = NoHooksOf(module);
  if (!own) return nullptr;
  PyObject* globals = Objects().module_globals;
  PyObject** dict = _PyObject_GetDictPtr(module);
  words->emplace_back(&module->ob_type);
  words->emplace_back(dict);
  words->emplace_back(DictVersionPlace(*dict));
  words->emplace_back(DictVersionPlace(globals));
  for (PyObject* hooks : *own) words->emplace_back(DictLengthPlace(hooks));
  for (PyObject* name : kGlobal) {
    PyObject* hooks = PyDict_GetItemWithError(globals, name);
    if (!IsEmptyDict(hooks)) return nullptr;
    words->emplace_back(DictLengthPlace(hooks));
  }
  if (_PyType_Lookup(type, impl_name) != plain_impl || _PyType_Lookup(type, compiled_name) != Py_None) return nullptr;
  PyObject* forward = _PyType_Lookup(type, forward_name);
  return forward != nullptr && PyFunction_Check(forward) ? forward : nullptr;
}

}  // namespace

bool ModuleRoute::IsOpen(PyTypeObject* type) const {
  return forward_ != nullptr && TypeIsUnchanged(type, type_version_) &&
         std::all_of(words_.begin(), words_.end(), [](const Word& word) { return word.IsSame(); });
}

PyObject* ModuleRoute::ForwardOf(PyObject* module) {
  PyTypeObject* type = Py_TYPE(module);
  if (IsOpen(type)) return forward_;
  words_.clear();
  forward_ = FindForward(module, &words_);
  type_version_ = TypeVersion(type);
  return forward_;
}

}  // namespace frametap
