// The `match` statement.
#include "frame_eval/cpython/private_api.h"
#include "frame_eval/interpreter/interpreter.h"
#include "frame_eval/interpreter/opcodes/names.h"

namespace frametap::opcodes {
namespace {

// Returns 1 if the key is new, 0 if it was there, -1 if this raised.
int AddNew(PyObject* seen, PyObject* key) {
  int known = PySet_Contains(seen, key);
  if (known != 0) return known < 0 ? -1 : 0;
  return PySet_Add(seen, key) < 0 ? -1 : 1;
}

// The values of all keys as a tuple, or None. get(key, default) is used: it does not create keys in a defaultdict.
PyObject* Values(PyObject* mapping, PyObject* keys) {
  Py_ssize_t n = PyTuple_GET_SIZE(keys);
  if (n == 0) return PyTuple_New(0);
  PyObject* get = nullptr;
  bool unbound = _PyObject_GetMethod(mapping, interned.get, &get) != 0;
  PyObject* seen = get == nullptr ? nullptr : PySet_New(nullptr);
  PyObject* absent = seen == nullptr ? nullptr : PyObject_CallNoArgs(reinterpret_cast<PyObject*>(&PyBaseObject_Type));
  PyObject* values = absent == nullptr ? nullptr : PyTuple_New(n);
  for (Py_ssize_t i = 0; values != nullptr && i < n; ++i) {
    PyObject* key = PyTuple_GET_ITEM(keys, i);
    int added = AddNew(seen, key);
    if (added == 0) PyErr_Format(PyExc_ValueError, "mapping pattern checks duplicate key (%R)", key);
    if (added <= 0) {
      Py_CLEAR(values);
      break;
    }
    PyObject* in[] = {mapping, key, absent};
    PyObject* value = unbound ? PyObject_Vectorcall(get, in, 3, nullptr) : PyObject_Vectorcall(get, in + 1, 2, nullptr);
    if (value == nullptr) {
      Py_CLEAR(values);
    } else if (value == absent) {
      Py_DECREF(value);
      Py_DECREF(values);
      values = Py_NewRef(Py_None);
      break;
    } else {
      PyTuple_SET_ITEM(values, i, value);
    }
  }
  Py_XDECREF(get);
  Py_XDECREF(seen);
  Py_XDECREF(absent);
  return values;
}

enum class Match { kYes, kNo, kRaised };

Match AddAttribute(PyObject* subject, PyTypeObject* type, PyObject* name, PyObject* seen, PyObject* attributes) {
  int added = AddNew(seen, name);
  if (added == 0) {
    PyErr_Format(PyExc_TypeError, "%s() got multiple sub-patterns for attribute %R", type->tp_name, name);
  }
  if (added <= 0) return Match::kRaised;
  PyObject* value = PyObject_GetAttr(subject, name);
  if (value == nullptr) {
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return Match::kRaised;
    PyErr_Clear();
    return Match::kNo;
  }
  int status = PyList_Append(attributes, value);
  Py_DECREF(value);
  return status < 0 ? Match::kRaised : Match::kYes;
}

// Sub-patterns by position: named by __match_args__; without it some built-in types match themselves.
Match AddPositional(PyObject* subject, PyTypeObject* type, Py_ssize_t n, PyObject* seen, PyObject* attributes) {
  PyObject* names = PyObject_GetAttr(reinterpret_cast<PyObject*>(type), interned.match_args);
  bool itself = false;
  if (names == nullptr) {
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return Match::kRaised;
    PyErr_Clear();
    names = PyTuple_New(0);
    if (names == nullptr) return Match::kRaised;
    itself = PyType_HasFeature(type, _Py_TPFLAGS_MATCH_SELF);
  }
  Match match = Match::kYes;
  if (!PyTuple_CheckExact(names)) {
    PyErr_Format(PyExc_TypeError, "%s.__match_args__ must be a tuple (got %s)", type->tp_name, Py_TYPE(names)->tp_name);
    match = Match::kRaised;
  } else {
    Py_ssize_t allowed = itself ? 1 : PyTuple_GET_SIZE(names);
    if (allowed < n) {
      PyErr_Format(PyExc_TypeError, "%s() accepts %zd positional sub-pattern%s (%zd given)", type->tp_name, allowed,
                   allowed == 1 ? "" : "s", n);
      match = Match::kRaised;
    } else if (itself) {
      if (PyList_Append(attributes, subject) < 0) match = Match::kRaised;
    } else {
      for (Py_ssize_t i = 0; match == Match::kYes && i < n; ++i) {
        PyObject* name = PyTuple_GET_ITEM(names, i);
        if (!PyUnicode_CheckExact(name)) {
          PyErr_Format(PyExc_TypeError, "__match_args__ elements must be strings (got %s)", Py_TYPE(name)->tp_name);
          match = Match::kRaised;
        } else {
          match = AddAttribute(subject, type, name, seen, attributes);
        }
      }
    }
  }
  Py_DECREF(names);
  return match;
}

// A tuple of attributes, None, or null: raised.
PyObject* ClassAttributes(PyObject* subject, PyObject* pattern, Py_ssize_t positional, PyObject* keywords) {
  if (!PyType_Check(pattern)) {
    PyErr_SetString(PyExc_TypeError, "called match pattern must be a type");
    return nullptr;
  }
  int instance = PyObject_IsInstance(subject, pattern);
  if (instance <= 0) return instance < 0 ? nullptr : Py_NewRef(Py_None);
  auto* type = reinterpret_cast<PyTypeObject*>(pattern);
  PyObject* seen = PySet_New(nullptr);
  PyObject* attributes = seen == nullptr ? nullptr : PyList_New(0);
  Match match = attributes == nullptr ? Match::kRaised : Match::kYes;
  if (match == Match::kYes && positional != 0) match = AddPositional(subject, type, positional, seen, attributes);
  for (Py_ssize_t i = 0; match == Match::kYes && i < PyTuple_GET_SIZE(keywords); ++i) {
    match = AddAttribute(subject, type, PyTuple_GET_ITEM(keywords, i), seen, attributes);
  }
  PyObject* result = match == Match::kYes  ? PyList_AsTuple(attributes)
                     : match == Match::kNo ? Py_NewRef(Py_None)
                                           : nullptr;
  Py_XDECREF(attributes);
  Py_XDECREF(seen);
  return result;
}

Step TestFlag(Execution& m, unsigned long flag) {
  Operation op(m, Op::kMatch, 1);
  return op.Push(NewBool(PyType_HasFeature(Py_TYPE(m.Peek(1)), flag)));
}

}  // namespace

OPCODE(GetLen, "subject -- subject length") {
  Operation op(m, Op::kGetLen, 1);
  Py_ssize_t length = PyObject_Length(m.Peek(1));
  return op.Push(length < 0 ? nullptr : PyLong_FromSsize_t(length));
}

OPCODE(MatchMapping, "subject -- subject matches") { return TestFlag(m, Py_TPFLAGS_MAPPING); }
OPCODE(MatchSequence, "subject -- subject matches") { return TestFlag(m, Py_TPFLAGS_SEQUENCE); }

OPCODE(MatchKeys, "subject keys -- subject keys values|None") {
  Operation op(m, Op::kMatch, 2);
  return op.Push(Values(m.Peek(2), m.Peek(1)));
}

OPCODE(MatchClass, "subject type names -- attributes|None") {
  Operation op(m, Op::kMatch, 3, arg);
  return op.Replace(3, ClassAttributes(m.Peek(3), m.Peek(2), arg, m.Peek(1)));
}

}  // namespace frametap::opcodes
