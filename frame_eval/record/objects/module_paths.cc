#include "frame_eval/record/objects/module_paths.h"

#include "absl/strings/str_cat.h"
#include "guards/cpython/watch.h"
#include "guards/objects/dict_items.h"
#include "guards/objects/dict_read.h"
#include "guards/objects/well_known_objects.h"

namespace frametap {
namespace {

// Borrowed: the submodules of `object`, or null if it is not a module or has no such dict.
PyObject* SubmodulesOf(PyObject* object) {
  static const Key kModules = NameKey("_modules");
  if (!PyObject_TypeCheck(object, Objects().module)) return nullptr;
  PyObject** const own = _PyObject_GetDictPtr(object);
  if (own == nullptr || *own == nullptr || !HasOnlyExactStrKeys(*own)) return nullptr;
  PyObject* const modules = StrDictGet(*own, kModules);
  return modules != nullptr && PyDict_Check(modules) && HasOnlyExactStrKeys(modules) ? modules : nullptr;
}

}  // namespace

ModulePaths::ModulePaths(const FrameState& outermost) {
  std::vector<PyObject*> roots;
  for (int i = 0; i < outermost.nlocalsplus; ++i) {
    PyObject* object = outermost.objects[i];
    if (object != nullptr && PyCell_Check(object)) object = PyCell_GET(object);
    if (object == nullptr || SubmodulesOf(object) == nullptr) continue;
    roots.push_back(object);
    if (i == 0) break;
  }
  for (PyObject* root : roots) Add(root, SharedText());
}

void ModulePaths::Add(PyObject* module, const SharedText& path) {
  if (!paths_.try_emplace(module, path).second) return;
  kept_.push_back(Ref<>::New(module));
  PyObject* const submodules = SubmodulesOf(module);
  if (submodules == nullptr) return;
  for (const auto [name, child] : DictItems(submodules)) {
    if (child == Py_None) continue;
    const char* const text = PyUnicode_AsUTF8(name);
    if (text == nullptr) {
      PyErr_Clear();  // a lone surrogate: such a module keeps the name that its source gives it
      continue;
    }
    Add(child, path.empty() ? SharedText(text) : SharedText(absl::StrCat(path.str(), ".", text)));
  }
}

std::optional<SharedText> ModulePaths::Of(PyObject* object) const {
  const auto it = paths_.find(object);
  if (it == paths_.end()) return std::nullopt;
  return it->second;
}

}  // namespace frametap
