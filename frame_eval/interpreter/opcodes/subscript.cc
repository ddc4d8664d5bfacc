// Items of containers, and slices.
#include "frame_eval/interpreter/interpreter.h"

namespace frametap::opcodes {

OPCODE(BinarySubscr, "container key -- value") {
  Operation op(m, Op::kSubscr, 2);
  return op.Replace(2, PyObject_GetItem(m.Peek(2), m.Peek(1)));
}

OPCODE(StoreSubscr, "value container key --") {
  Operation op(m, Op::kStoreSubscr, 3);
  return op.Finish(3, PyObject_SetItem(m.Peek(2), m.Peek(1), m.Peek(3)));
}

OPCODE(DeleteSubscr, "container key --") {
  Operation op(m, Op::kDeleteSubscr, 2);
  return op.Finish(2, PyObject_DelItem(m.Peek(2), m.Peek(1)));
}

OPCODE(BuildSlice, "start stop [step] -- slice") {
  Operation op(m, Op::kBuildSlice, arg);
  PyObject** in = m.top - arg;
  return op.Replace(arg, PySlice_New(in[0], in[1], arg == 3 ? in[2] : nullptr));
}

}  // namespace frametap::opcodes
