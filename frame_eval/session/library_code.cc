#include "frame_eval/session/library_code.h"

#include <cstring>
#include <string>

#include "guards/ref.h"

namespace frametap {
namespace {

// The folder of a module's file, with a slash at its end; "" if the module is not imported or has no file.
std::string FolderOf(const char* module) {
  const ErrScope keep;
  PyObject* modules = PyImport_GetModuleDict();
  PyObject* object = modules != nullptr ? PyDict_GetItemString(modules, module) : nullptr;
  PyObject* dict = object != nullptr && PyModule_Check(object) ? PyModule_GetDict(object) : nullptr;
  PyObject* path = dict != nullptr ? PyDict_GetItemString(dict, "__file__") : nullptr;
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

}  // namespace frametap
