// Attributes, and the first half of a method call.
#include <utility>

#include "frame_eval/cpython/private_api.h"
#include "frame_eval/interpreter/interpreter.h"

namespace frametap::opcodes {

OPCODE(LoadAttr, "owner -- value") {
  PyObject* name = m.Name(arg);
  Operation op(m, Op::kLoadAttr, 1, 0, name);
  PyObject* value = std::exchange(m.answer, nullptr);
  return op.Replace(1, value != nullptr ? value : PyObject_GetAttr(m.Peek(1), name));
}

// A plain function of the class is not bound: the call takes the owner as its first argument. Anything else lies on a
// null.
OPCODE(LoadMethod, "owner -- method owner | null value") {
  PyObject* name = m.Name(arg);
  PyObject* owner = m.Peek(1);
  Operation op(m, Op::kLoadMethod, 1, 0, name);
  PyObject* method = std::exchange(m.answer, nullptr);
  bool unbound = method == nullptr && _PyObject_GetMethod(owner, name, &method) != 0;
  if (method == nullptr) return op.Raised();
  op.SetArg(unbound);
  Shadow of_method = op.Succeeded(method);
  Shadow of_owner = m.PeekShadow(1);
  m.Pop();
  if (unbound) {
    m.Push(method, of_method);
    m.Push(owner, of_owner);
  } else {
    m.Push(nullptr);
    m.Push(method, of_method);
    Py_DECREF(owner);
  }
  return Step::kNext;
}

OPCODE(StoreAttr, "value owner --") {
  PyObject* name = m.Name(arg);
  Operation op(m, Op::kStoreAttr, 2, 0, name);
  return op.Finish(2, PyObject_SetAttr(m.Peek(1), name, m.Peek(2)));
}

OPCODE(DeleteAttr, "owner --") {
  PyObject* name = m.Name(arg);
  Operation op(m, Op::kDeleteAttr, 1, 0, name);
  return op.Finish(1, PyObject_SetAttr(m.Peek(1), name, nullptr));
}

}  // namespace frametap::opcodes
