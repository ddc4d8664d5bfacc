// Functions of CPython that are exported but that no public header promises: their home, so that a new version is
// checked here and nowhere else.
#pragma once

#include <Python.h>

extern "C" {
PyObject* _PyObject_FunctionStr(PyObject* callable);
// 1 if unbound, takes the object as self
int _PyObject_GetMethod(PyObject* object, PyObject* name, PyObject** method);
int _PyObject_LookupAttr(PyObject* object, PyObject* name, PyObject** value);  // 0 if no such attribute, no error
int _PyDict_MergeEx(PyObject* dict, PyObject* other, int override_keys);       // 2 makes an existing key an error
PyObject* _PyList_Extend(PyListObject* list, PyObject* iterable);
int _PySet_Update(PyObject* set, PyObject* iterable);
PyObject* _PyUnicode_JoinArray(PyObject* separator, PyObject* const* items, Py_ssize_t n);
int _PyModuleSpec_IsInitializing(PyObject* spec);
_PyErr_StackItem* _PyErr_GetTopmostException(PyThreadState* ts);
PyObject* _PyErr_FormatFromCause(PyObject* exception, const char* format, ...);
}

namespace frametap {

// PyObject_Vectorcall as the evaluation loop does it where it has specialised a call: counted against the recursion
// limit in the same way.
PyObject* SpecializedCall(PyThreadState* ts, PyObject* callable, PyObject* const* args, Py_ssize_t n,
                          PyObject* kwnames);

// An attribute of the object's type, bound to it, as the interpreter looks up __enter__; null without an error: none.
PyObject* LookupSpecial(PyObject* object, PyObject* name);

}  // namespace frametap
