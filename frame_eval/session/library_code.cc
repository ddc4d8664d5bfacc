#include "frame_eval/session/library_code.h"

#include <cstring>
#include <string>

#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/record/fast_paths/module_calls.h"
#include "frame_eval/record/trace/checkpoint_nodes.h"
#include "guards/objects/import.h"
#include "guards/throw_if_null.h"

namespace frametap {
namespace {

// The folder of a module's file, with a slash at its end; "" if the module is not imported or has no file.
std::string FolderOf(const char* module) {
  const ErrScope keep;
  PyObject* modules = PyImport_GetModuleDict();
  PyObject* object = modules != nullptr ? ItemOrError(modules, module) : nullptr;
  PyObject* dict = object != nullptr && PyModule_Check(object) ? PyModule_GetDict(object) : nullptr;
  PyObject* path = dict != nullptr ? ItemOrError(dict, "__file__") : nullptr;
  const char* text = path != nullptr && PyUnicode_Check(path) ? PyUnicode_AsUTF8(path) : nullptr;
  const char* slash = text != nullptr ? std::strrchr(text, '/') : nullptr;
  return slash == nullptr ? "" : std::string(text, slash + 1 - text);
}

// Returns the part of `file` after `folder`, or null if the file is elsewhere.
const char* Within(const std::string& folder, const char* file) {
  return !folder.empty() && std::strncmp(file, folder.c_str(), folder.size()) == 0 ? file + folder.size() : nullptr;
}

// A library may be imported later: until then none of its code runs.
bool IsOf(const char* module, std::string* folder, const char* file) {
  if (folder->empty()) *folder = FolderOf(module);
  return Within(*folder, file) != nullptr;
}

bool IsOfPackage(const char* file) {
  return std::strstr(file, "/site-packages/") != nullptr || std::strstr(file, "/dist-packages/") != nullptr;
}

// Null with no exception set where it cannot be read.
const char* FileOf(PyCodeObject* code) {
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  if (file == nullptr) PyErr_Clear();
  return file;
}

}  // namespace

bool IsLibraryCode(PyCodeObject* code) {
  static const std::string library = FolderOf("os"), torch = FolderOf("torch");
  static std::string numpy, scipy;
  const char* file = FileOf(code);
  if (file == nullptr || std::strncmp(file, "<frozen", 7) == 0) return true;
  if (const char* part = Within(torch, file)) {
    for (const char* layers : {"nn/", "optim/", "distributions/", "functional.py"}) {
      if (std::strncmp(part, layers, std::strlen(layers)) == 0) return false;
    }
    return true;
  }
  if (!IsOfPackage(file)) return Within(library, file) != nullptr;
  return IsOf("numpy", &numpy, file) || IsOf("scipy", &scipy, file);
}

bool IsPackageCode(PyCodeObject* code) {
  const char* file = FileOf(code);
  // torch.fx names the code of its modules after "<eval_with_key>".
  return file == nullptr || IsOfPackage(file) || std::strcmp(file, "<string>") == 0 ||
         std::strncmp(file, "<eval_with_key>", 15) == 0;
}

bool BelongsToImport(PyCodeObject* code) {
  if ((code->co_flags & CO_OPTIMIZED) == 0) return PyUnicode_CompareWithASCIIString(code->co_name, "<module>") == 0;
  return PyUnicode_CompareWithASCIIString(code->co_filename, "<frozen importlib._bootstrap>") == 0;
}

bool PlansEinsum(PyCodeObject* code) {
  if (PyUnicode_CompareWithASCIIString(code->co_name, "contract_path") != 0) return false;
  const ErrScope keep;
  Ref<> found = ImportModule("torch.backends.opt_einsum");
  for (const char* part : {"_opt_einsum", "contract_path", "__code__"}) {
    if (found) found = Ref<>::Steal(PyObject_GetAttrString(found.get(), part));
  }
  return found.get() == reinterpret_cast<PyObject*>(code);
}

LibraryFilter::LibraryFilter(PyObject* function)
    : named_(PyFunction_Check(function) ? reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function)) : nullptr) {}

bool LibraryFilter::LeavesWhole(PyCodeObject* code, SegmentCache& store) const {
  return BelongsToImport(code) || code == OwnExecutable() || (PlansEinsum(code) && code != named_) ||
         (IsCheckpointCode(code) && !store.backend().calls_python());
}

void LibraryFilter::NoteLeft(PyCodeObject* code) {
  if (!first_left_) first_left_ = Ref<>::New(reinterpret_cast<PyObject*>(code));
}

void LibraryFilter::TellOfSilence(SegmentCache& store) const {
  if (!store.log().empty()) return;
  PyCodeObject* const code = first_left_ ? reinterpret_cast<PyCodeObject*>(first_left_.get()) : named_;
  if (code == nullptr) return;
  const ErrScope keep;
  store.LeftAlone(first_left_ ? Reason::library_code : Reason::no_frame, code, StartOffset(code));
}

}  // namespace frametap
