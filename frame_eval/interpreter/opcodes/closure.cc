// Cells and functions. A cell lies in a slot of localsplus; what the tracer says of it is about the cell itself.
#include "frame_eval/interpreter/interpreter.h"

namespace frametap::opcodes {

OPCODE(CopyFreeVars, "--") {
  PyObject* closure = m.function->func_closure;
  int slot = m.nlocalsplus - arg;
  for (int i = 0; i < arg; ++i) m.SetLocal(slot + i, Py_NewRef(PyTuple_GET_ITEM(closure, i)), {});
  return Step::kNext;
}

OPCODE(MakeCell, "--") {
  PyObject* cell = PyCell_New(m.objects[arg]);
  if (cell == nullptr) return Step::kRaised;
  m.SetLocal(arg, cell, m.AfterOnly(Op::kMakeCell, arg, nullptr, cell));
  return Step::kNext;
}

OPCODE(LoadClosure, "-- cell") {
  PyObject* cell = m.objects[arg];
  if (cell == nullptr) return m.Unbound(arg);
  m.Push(Py_NewRef(cell), m.AfterOnly(Op::kLoadClosure, arg, nullptr, cell));
  return Step::kNext;
}

OPCODE(LoadDeref, "-- value") {
  PyObject* value = PyCell_GET(m.objects[arg]);
  if (value == nullptr) return m.RaisedOnly(Op::kLoadDeref, m.Unbound(arg));
  Py_INCREF(value);
  m.Push(value, m.AfterOnly(Op::kLoadDeref, arg, nullptr, value));
  return Step::kNext;
}

OPCODE(StoreDeref, "value --") {
  Operation op(m, Op::kStoreDeref, 1, arg);
  PyObject* cell = m.objects[arg];
  PyObject* old = PyCell_GET(cell);
  PyCell_SET(cell, Py_NewRef(m.Peek(1)));
  Step step = op.Finish(1, 0);
  Py_XDECREF(old);
  return step;
}

OPCODE(DeleteDeref, "--") {
  PyObject* cell = m.objects[arg];
  PyObject* old = PyCell_GET(cell);
  if (old == nullptr) return m.RaisedOnly(Op::kDeleteDeref, m.Unbound(arg));
  Operation op(m, Op::kDeleteDeref, 0, arg);
  PyCell_SET(cell, nullptr);
  Step step = op.Finish(0, 0);
  Py_DECREF(old);
  return step;
}

// In a class body: its own namespace first, then the enclosing function's cell.
OPCODE(LoadClassDeref, "-- value") {
  PyObject* locals = m.Locals();
  PyObject* name = PyTuple_GET_ITEM(m.code->co_localsplusnames, arg);
  Operation op(m, Op::kOther, 0, arg, name);
  PyObject* value;
  if (PyDict_CheckExact(locals)) {
    value = Py_XNewRef(PyDict_GetItemWithError(locals, name));
  } else {
    value = PyObject_GetItem(locals, name);
    if (value == nullptr && PyErr_ExceptionMatches(PyExc_KeyError)) PyErr_Clear();
  }
  if (value == nullptr && !PyErr_Occurred()) {
    value = Py_XNewRef(PyCell_GET(m.objects[arg]));
    if (value == nullptr) m.Unbound(arg);
  }
  return op.Push(value);
}

OPCODE(MakeFunction, "[defaults] [kwdefaults] [annotations] [closure] code -- function") {
  int n = 1 + __builtin_popcount(arg & 15);
  Operation op(m, Op::kMakeFunction, n, arg);
  PyObject* made = PyFunction_New(m.Peek(1), m.globals);
  if (made == nullptr) return op.Raised();
  auto* function = reinterpret_cast<PyFunctionObject*>(made);
  PyObject** part = &m.Peek(2);
  if (arg & 8) function->func_closure = Py_NewRef(*part--);
  if (arg & 4) function->func_annotations = Py_NewRef(*part--);
  if (arg & 2) function->func_kwdefaults = Py_NewRef(*part--);
  if (arg & 1) function->func_defaults = Py_NewRef(*part--);
  return op.Replace(n, made);
}

}  // namespace frametap::opcodes
