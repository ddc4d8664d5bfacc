// Moves between the stack, constants, locals and namespaces. Shadows go with the objects.
#include <utility>

#include "frame_eval/interpreter/interpreter.h"
#include "frame_eval/interpreter/opcodes/names.h"

namespace frametap::opcodes {
namespace {

// A new reference to namespace[name]; null without an error set: not there.
PyObject* Find(PyObject* space, PyObject* name) {
  if (PyDict_CheckExact(space)) return Py_XNewRef(PyDict_GetItemWithError(space, name));
  PyObject* value = PyObject_GetItem(space, name);
  if (value == nullptr && PyErr_ExceptionMatches(PyExc_KeyError)) PyErr_Clear();
  return value;
}

// Returns the namespace of a module or class body, or null with an error. `format` may have a place for `name`.
PyObject* LocalsFor(const Execution& m, const char* format, PyObject* name = nullptr) {
  PyObject* const locals = m.Locals();
  if (locals == nullptr) PyErr_Format(PyExc_SystemError, format, name);
  return locals;
}

int Store(PyObject* space, PyObject* name, PyObject* value) {
  return PyDict_CheckExact(space) ? PyDict_SetItem(space, name, value) : PyObject_SetItem(space, name, value);
}

}  // namespace

OPCODE(Nop, "--") { return Step::kNext; }

// Resuming after `yield from` and `await` (2, 3) leaves interrupts to the innermost frame.
OPCODE(Resume, "--") { return arg < 2 ? Step::kCheck : Step::kNext; }

OPCODE(PopTop, "value --") {
  m.Drop();
  return Step::kNext;
}

OPCODE(PushNull, "-- null") {
  m.Push(nullptr);
  return Step::kNext;
}

OPCODE(Copy, "value … -- value … value") {
  m.Push(Py_XNewRef(m.Peek(arg)), m.PeekShadow(arg));
  return Step::kNext;
}

OPCODE(Swap, "a … b -- b … a") {
  std::swap(m.Peek(1), m.Peek(arg));
  std::swap(m.PeekShadow(1), m.PeekShadow(arg));
  return Step::kNext;
}

OPCODE(LoadConst, "-- value") {
  PyObject* value = PyTuple_GET_ITEM(m.consts, arg);
  if (m.traced && PyTuple_CheckExact(value)) [[unlikely]]
    m.AfterOnly(Op::kLoadConst, 0, nullptr, value);
  m.Push(Py_NewRef(value));
  return Step::kNext;
}

OPCODE(LoadFast, "-- value") {
  PyObject* value = m.objects[arg];
  if (value == nullptr) return m.RaisedOnly(Op::kOther, m.Unbound(arg));
  m.Push(Py_NewRef(value), m.shadows[arg]);
  return Step::kNext;
}

OPCODE(StoreFast, "value --") {
  Shadow shadow = m.PeekShadow(1);
  m.SetLocal(arg, m.Pop(), shadow);
  return Step::kNext;
}

OPCODE(DeleteFast, "--") {
  if (m.objects[arg] == nullptr) return m.RaisedOnly(Op::kOther, m.Unbound(arg));
  m.SetLocal(arg, nullptr, {});
  return Step::kNext;
}

OPCODE(LoadName, "-- value") {
  PyObject* name = m.Name(arg);
  PyObject* locals = LocalsFor(m, "no locals when loading %R", name);
  if (locals == nullptr) return Step::kRaised;
  int where = 0;
  PyObject* value = Find(locals, name);
  if (value == nullptr && !PyErr_Occurred()) {
    where = 1;
    value = Py_XNewRef(PyDict_GetItemWithError(m.globals, name));
  }
  if (value == nullptr && !PyErr_Occurred()) {
    where = 2;
    value = Find(m.builtins, name);
  }
  if (value == nullptr) return PyErr_Occurred() ? Step::kRaised : m.RaisedOnly(Op::kLoadName, m.NotDefined(name));
  m.Push(value, m.AfterOnly(Op::kLoadName, where, name, value));
  return Step::kNext;
}

OPCODE(StoreName, "value --") {
  PyObject* name = m.Name(arg);
  PyObject* locals = LocalsFor(m, "no locals found when storing %R", name);
  if (locals == nullptr) return Step::kRaised;
  Operation op(m, Op::kStoreName, 1, 0, name);
  return op.Finish(1, Store(locals, name, m.Peek(1)));
}

OPCODE(DeleteName, "--") {
  PyObject* name = m.Name(arg);
  PyObject* locals = LocalsFor(m, "no locals when deleting %R", name);
  if (locals == nullptr) return Step::kRaised;
  Operation op(m, Op::kDeleteName, 0, 0, name);
  int status = PyObject_DelItem(locals, name);
  if (status < 0) m.NotDefined(name);  // whatever the reason was
  return op.Finish(0, status);
}

// The low bit of the argument asks for a null below the value: a call follows.
OPCODE(LoadGlobal, "-- [null] value") {
  PyObject* name = m.Name(arg >> 1);
  int where = 0;
  PyObject* value;
  if (PyDict_CheckExact(m.globals) && PyDict_CheckExact(m.builtins)) {
    value = Py_XNewRef(PyDict_GetItemWithError(m.globals, name));
    if (value == nullptr && !PyErr_Occurred()) {
      where = 1;
      value = Py_XNewRef(PyDict_GetItemWithError(m.builtins, name));
    }
  } else {
    const Operation op(m, Op::kLoadGlobal, 0, where, name);  // a __getitem__ of the program may run
    value = PyObject_GetItem(m.globals, name);
    if (value == nullptr && PyErr_ExceptionMatches(PyExc_KeyError)) {
      PyErr_Clear();
      where = 1;
      value = Find(m.builtins, name);
    }
  }
  if (value == nullptr) return PyErr_Occurred() ? Step::kRaised : m.RaisedOnly(Op::kLoadGlobal, m.NotDefined(name));
  Shadow shadow = m.AfterOnly(Op::kLoadGlobal, where, name, value);
  if (arg & 1) m.Push(nullptr);
  m.Push(value, shadow);
  return Step::kNext;
}

OPCODE(StoreGlobal, "value --") {
  PyObject* name = m.Name(arg);
  Operation op(m, Op::kStoreGlobal, 1, 0, name);
  return op.Finish(1, PyDict_SetItem(m.globals, name, m.Peek(1)));
}

OPCODE(DeleteGlobal, "--") {
  PyObject* name = m.Name(arg);
  Operation op(m, Op::kDeleteGlobal, 0, 0, name);
  int status = PyDict_DelItem(m.globals, name);
  if (status < 0 && PyErr_ExceptionMatches(PyExc_KeyError)) m.NotDefined(name);
  return op.Finish(0, status);
}

OPCODE(LoadBuildClass, "-- function") {
  Operation op(m, Op::kOther, 0);
  PyObject* function = Find(m.builtins, interned.build_class);
  if (function == nullptr && !PyErr_Occurred()) PyErr_SetString(PyExc_NameError, "__build_class__ not found");
  return op.Push(function);
}

OPCODE(SetupAnnotations, "--") {
  PyObject* locals = LocalsFor(m, "no locals found when setting up annotations");
  if (locals == nullptr) return Step::kRaised;
  Operation op(m, Op::kOther, 0);
  PyObject* annotations = Find(locals, interned.annotations);
  if (annotations == nullptr) {
    if (PyErr_Occurred() || (annotations = PyDict_New()) == nullptr ||
        Store(locals, interned.annotations, annotations) < 0) {
      Py_XDECREF(annotations);
      return op.Raised();
    }
  }
  Py_DECREF(annotations);
  return op.Finish(0, 0);
}

}  // namespace frametap::opcodes
