// Tuples, lists, sets, dicts and strings made from stack slots.
#include "frame_eval/cpython/private_api.h"
#include "frame_eval/interpreter/interpreter.h"
#include "frame_eval/interpreter/opcodes/names.h"

namespace frametap::opcodes {

void ExplainKeywords(PyObject* callable, PyObject* mapping);

OPCODE(BuildTuple, "items… -- tuple") {
  Operation op(m, Op::kBuildTuple, arg);
  PyObject* tuple = PyTuple_New(arg);
  if (tuple == nullptr) return op.Raised();
  for (int i = 0; i < arg; ++i) PyTuple_SET_ITEM(tuple, i, Py_NewRef(m.Peek(arg - i)));
  return arg == 0 ? op.Push(tuple) : op.Replace(arg, tuple);
}

OPCODE(BuildList, "items… -- list") {
  Operation op(m, Op::kBuildList, arg);
  PyObject* list = PyList_New(arg);
  if (list == nullptr) return op.Raised();
  for (int i = 0; i < arg; ++i) PyList_SET_ITEM(list, i, Py_NewRef(m.Peek(arg - i)));
  return arg == 0 ? op.Push(list) : op.Replace(arg, list);
}

OPCODE(BuildSet, "items… -- set") {
  Operation op(m, Op::kBuildSet, arg);
  PyObject* set = PySet_New(nullptr);
  if (set == nullptr) return op.Raised();
  for (int i = arg; i > 0; --i) {
    if (PySet_Add(set, m.Peek(i)) < 0) {
      Py_DECREF(set);
      return op.Raised();
    }
  }
  return arg == 0 ? op.Push(set) : op.Replace(arg, set);
}

OPCODE(BuildMap, "(key value)… -- dict") {
  int n = 2 * arg;
  Operation op(m, Op::kBuildMap, n);
  PyObject* dict = PyDict_New();
  if (dict == nullptr) return op.Raised();
  for (PyObject** in = m.top - n; in < m.top; in += 2) {
    if (PyDict_SetItem(dict, in[0], in[1]) < 0) {
      Py_DECREF(dict);
      return op.Raised();
    }
  }
  return n == 0 ? op.Push(dict) : op.Replace(n, dict);
}

OPCODE(BuildConstKeyMap, "values… keys -- dict") {
  int n = arg + 1;
  PyObject* keys = m.Peek(1);
  if (!PyTuple_CheckExact(keys) || PyTuple_GET_SIZE(keys) != arg) {
    PyErr_SetString(PyExc_SystemError, "bad BUILD_CONST_KEY_MAP keys argument");
    return Step::kRaised;
  }
  Operation op(m, Op::kBuildConstKeyMap, n);
  PyObject* dict = PyDict_New();
  if (dict == nullptr) return op.Raised();
  PyObject** values = m.top - n;
  for (int i = 0; i < arg; ++i) {
    if (PyDict_SetItem(dict, PyTuple_GET_ITEM(keys, i), values[i]) < 0) {
      Py_DECREF(dict);
      return op.Raised();
    }
  }
  return op.Replace(n, dict);
}

OPCODE(BuildString, "parts… -- string") {
  Operation op(m, Op::kBuildString, arg);
  PyObject* joined = _PyUnicode_JoinArray(interned.empty, m.top - arg, arg);
  return arg == 0 ? op.Push(joined) : op.Replace(arg, joined);
}

OPCODE(FormatValue, "value [spec] -- string") {
  enum { kConversion = 3, kStr = 1, kRepr = 2, kAscii = 3, kHasSpec = 4 };
  int n = arg & kHasSpec ? 2 : 1;
  Operation op(m, Op::kFormatValue, n, arg);
  PyObject* value = m.Peek(n);
  PyObject* spec = n == 2 ? m.Peek(1) : nullptr;
  switch (arg & kConversion) {
    case kStr:
      value = PyObject_Str(value);
      break;
    case kRepr:
      value = PyObject_Repr(value);
      break;
    case kAscii:
      value = PyObject_ASCII(value);
      break;
    default:
      Py_INCREF(value);
  }
  if (value == nullptr) return op.Raised();
  if (PyUnicode_CheckExact(value) && spec == nullptr) return op.Replace(n, value);
  PyObject* formatted = PyObject_Format(value, spec);
  Py_DECREF(value);
  return op.Replace(n, formatted);
}

// A comprehension's collection lies `arg` below what is added to it.

OPCODE(ListAppend, "list … value -- list …") {
  Gathered<2> g(m, {arg + 1, 1});
  Operation op(m, Op::kListAppend, g.in, g.shadows, 2);
  return op.Finish(1, PyList_Append(g.in[0], g.in[1]));
}

OPCODE(SetAdd, "set … value -- set …") {
  Gathered<2> g(m, {arg + 1, 1});
  Operation op(m, Op::kSetAdd, g.in, g.shadows, 2);
  return op.Finish(1, PySet_Add(g.in[0], g.in[1]));
}

OPCODE(MapAdd, "dict … key value -- dict …") {
  Gathered<3> g(m, {arg + 2, 2, 1});
  Operation op(m, Op::kMapAdd, g.in, g.shadows, 3);
  return op.Finish(2, PyDict_SetItem(g.in[0], g.in[1], g.in[2]));
}

OPCODE(ListExtend, "list … iterable -- list …") {
  Gathered<2> g(m, {arg + 1, 1});
  Operation op(m, Op::kListExtend, g.in, g.shadows, 2);
  PyObject* iterable = g.in[1];
  PyObject* none = _PyList_Extend(reinterpret_cast<PyListObject*>(g.in[0]), iterable);
  if (none == nullptr) {
    if (PyErr_ExceptionMatches(PyExc_TypeError) && Py_TYPE(iterable)->tp_iter == nullptr &&
        !PySequence_Check(iterable)) {
      PyErr_Clear();
      PyErr_Format(PyExc_TypeError, "Value after * must be an iterable, not %.200s", Py_TYPE(iterable)->tp_name);
    }
    return op.Raised();
  }
  Py_DECREF(none);
  return op.Finish(1, 0);
}

OPCODE(SetUpdate, "set … iterable -- set …") {
  Gathered<2> g(m, {arg + 1, 1});
  Operation op(m, Op::kSetUpdate, g.in, g.shadows, 2);
  return op.Finish(1, _PySet_Update(g.in[0], g.in[1]));
}

OPCODE(DictUpdate, "dict … mapping -- dict …") {
  Gathered<2> g(m, {arg + 1, 1});
  Operation op(m, Op::kDictUpdate, g.in, g.shadows, 2);
  int status = PyDict_Update(g.in[0], g.in[1]);
  if (status < 0 && PyErr_ExceptionMatches(PyExc_AttributeError)) {
    PyErr_Format(PyExc_TypeError, "'%.200s' object is not a mapping", Py_TYPE(g.in[1])->tp_name);
  }
  return op.Finish(1, status);
}

// Keyword arguments of a call: a key must not come twice. The callable lies two below the dict.
OPCODE(DictMerge, "callable args dict … mapping -- callable args dict …") {
  Gathered<2> g(m, {arg + 1, 1});
  Operation op(m, Op::kDictMerge, g.in, g.shadows, 2);
  int status = _PyDict_MergeEx(g.in[0], g.in[1], 2);
  if (status < 0) ExplainKeywords(m.Peek(arg + 3), g.in[1]);
  return op.Finish(1, status);
}

OPCODE(ListToTuple, "list -- tuple") {
  Operation op(m, Op::kListToTuple, 1);
  return op.Replace(1, PyList_AsTuple(m.Peek(1)));
}

}  // namespace frametap::opcodes
