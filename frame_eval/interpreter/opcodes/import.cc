// Imports.
#include "frame_eval/cpython/private_api.h"
#include "frame_eval/interpreter/interpreter.h"
#include "frame_eval/interpreter/opcodes/names.h"

namespace frametap::opcodes {
namespace {

// `from module import name` where the module has no such attribute: perhaps a submodule in a circular import.
PyObject* FromSubmodule(PyObject* module, PyObject* name) {
  PyObject* package = PyObject_GetAttr(module, interned.name);
  if (package != nullptr && PyUnicode_Check(package)) {
    PyObject* full = PyUnicode_FromFormat("%U.%U", package, name);
    if (full == nullptr) {
      Py_DECREF(package);
      return nullptr;
    }
    PyObject* found = PyImport_GetModule(full);
    Py_DECREF(full);
    if (found != nullptr || PyErr_Occurred()) {
      Py_DECREF(package);
      return found;
    }
  } else {
    Py_CLEAR(package);
  }
  PyObject* path = PyModule_GetFilenameObject(module);
  PyObject* shown = package != nullptr ? Py_NewRef(package) : PyUnicode_FromString("<unknown module name>");
  if (shown != nullptr) {
    PyObject* message;
    if (path == nullptr || !PyUnicode_Check(path)) {
      PyErr_Clear();
      message = PyUnicode_FromFormat("cannot import name %R from %R (unknown location)", name, shown);
      PyErr_SetImportError(message, package, nullptr);
    } else {
      PyObject* spec = PyObject_GetAttr(module, interned.spec);
      const char* format = _PyModuleSpec_IsInitializing(spec)
                               ? "cannot import name %R from partially initialized module %R "
                                 "(most likely due to a circular import) (%S)"
                               : "cannot import name %R from %R (%S)";
      Py_XDECREF(spec);
      message = PyUnicode_FromFormat(format, name, shown, path);
      PyErr_SetImportError(message, package, path);
    }
    Py_XDECREF(message);
    Py_DECREF(shown);
  }
  Py_XDECREF(path);
  Py_XDECREF(package);
  return nullptr;
}

void RefuseName(PyObject* module, PyObject* name, bool from_dict) {
  PyObject* of = PyObject_GetAttr(module, interned.name);
  if (of == nullptr) return;
  if (!PyUnicode_Check(of)) {
    PyErr_Format(PyExc_TypeError, "module __name__ must be a string, not %.100s", Py_TYPE(of)->tp_name);
  } else {
    PyErr_Format(PyExc_TypeError, "%s in %U.%s must be str, not %.100s", from_dict ? "Key" : "Item", of,
                 from_dict ? "__dict__" : "__all__", Py_TYPE(name)->tp_name);
  }
  Py_DECREF(of);
}

int ImportOne(PyObject* locals, PyObject* module, PyObject* name, bool from_dict) {
  if (!PyUnicode_Check(name)) {
    RefuseName(module, name, from_dict);
    return -1;
  }
  if (from_dict) {
    if (PyUnicode_READY(name) < 0) return -1;
    if (PyUnicode_GET_LENGTH(name) > 0 && PyUnicode_READ_CHAR(name, 0) == '_') return 0;
  }
  PyObject* value = PyObject_GetAttr(module, name);
  if (value == nullptr) return -1;
  int status = PyDict_CheckExact(locals) ? PyDict_SetItem(locals, name, value) : PyObject_SetItem(locals, name, value);
  Py_DECREF(value);
  return status;
}

int ImportAll(PyObject* locals, PyObject* module) {
  PyObject* all;
  if (_PyObject_LookupAttr(module, interned.all, &all) < 0) return -1;
  bool from_dict = all == nullptr;
  if (from_dict) {
    PyObject* dict;
    if (_PyObject_LookupAttr(module, interned.dict, &dict) < 0) return -1;
    if (dict == nullptr) {
      PyErr_SetString(PyExc_ImportError, "from-import-* object has no __dict__ and no __all__");
      return -1;
    }
    all = PyMapping_Keys(dict);
    Py_DECREF(dict);
    if (all == nullptr) return -1;
  }
  int status = 0;
  for (Py_ssize_t i = 0; status == 0; ++i) {
    PyObject* name = PySequence_GetItem(all, i);
    if (name == nullptr) {
      if (PyErr_ExceptionMatches(PyExc_IndexError)) {
        PyErr_Clear();
      } else {
        status = -1;
      }
      break;
    }
    status = ImportOne(locals, module, name, from_dict);
    Py_DECREF(name);
  }
  Py_DECREF(all);
  return status;
}

}  // namespace

OPCODE(ImportName, "level fromlist -- module") {
  PyObject* name = m.Name(arg);
  Operation op(m, Op::kImportName, 2, 0, name);
  PyObject* import = PyDict_GetItemWithError(m.builtins, interned.import);
  if (import == nullptr) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ImportError, "__import__ not found");
    return op.Raised();
  }
  PyObject* locals = m.Locals() != nullptr ? m.Locals() : Py_None;
  PyObject* in[] = {name, m.globals, locals, m.Peek(1), m.Peek(2)};
  Py_INCREF(import);
  PyObject* module = PyObject_Vectorcall(import, in, 5, nullptr);
  Py_DECREF(import);
  return op.Replace(2, module);
}

OPCODE(ImportFrom, "module -- module value") {
  PyObject* name = m.Name(arg);
  Operation op(m, Op::kImportFrom, 1, 0, name);
  PyObject* module = m.Peek(1);
  PyObject* value;
  if (_PyObject_LookupAttr(module, name, &value) == 0) value = FromSubmodule(module, name);
  return op.Push(value);
}

// Only module bodies have it; they keep their names in a namespace, not in slots.
OPCODE(ImportStar, "module --") {
  if (m.nlocalsplus != 0) return Step::kHandOver;
  Operation op(m, Op::kImportStar, 1);
  PyObject* locals = m.Locals();
  if (locals == nullptr) {
    PyErr_SetString(PyExc_SystemError, "no locals found during 'import *'");
    return op.Raised();
  }
  return op.Finish(1, ImportAll(locals, m.Peek(1)));
}

}  // namespace frametap::opcodes
