// Comparisons.
#include "frame_eval/interpreter/interpreter.h"

namespace frametap::opcodes {

OPCODE(CompareOp, "left right -- result") {
  Operation op(m, Op::kCompare, 2, arg);
  return op.Replace(2, PyObject_RichCompare(m.Peek(2), m.Peek(1), arg));
}

OPCODE(IsOp, "left right -- result") {
  Operation op(m, Op::kIs, 2, arg);
  return op.Replace(2, NewBool((m.Peek(2) == m.Peek(1)) != (arg != 0)));
}

OPCODE(ContainsOp, "item container -- result") {
  Operation op(m, Op::kContains, 2, arg);
  int found = PySequence_Contains(m.Peek(1), m.Peek(2));
  return op.Replace(2, found < 0 ? nullptr : NewBool((found != 0) != (arg != 0)));
}

}  // namespace frametap::opcodes
