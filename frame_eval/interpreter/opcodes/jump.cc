// Jumps. `arg` is a signed distance in code units; only a jump back is a place for signals.
#include "frame_eval/interpreter/interpreter.h"

namespace frametap::opcodes {
namespace {

int Truth(PyObject* value) {
  if (value == Py_True) return 1;
  if (value == Py_False) return 0;
  return PyObject_IsTrue(value);
}

Step Go(Execution& m, int distance) {
  m.next += distance;
  return distance < 0 ? Step::kCheck : Step::kNext;
}

// Whether the topmost value is a constant of the trace (shadow/H1) whose truth runs no code. A jump on it is a mere move.
bool IsConstant(const Execution& m) {
  return m.PeekShadow(1).kind == Shadow::Kind::kNone && (PyBool_Check(m.Peek(1)) || m.Peek(1) == Py_None);
}

// Tests the topmost value, which stays. Returns -1 if that raised.
int TruthOfTop(Execution& m) {
  if (IsConstant(m)) return m.Peek(1) == Py_True;
  Operation op(m, Op::kTruth, 1);
  const int truth = Truth(m.Peek(1));
  if (truth < 0) {
    op.Raised();
  } else {
    op.Succeeded(truth ? Py_True : Py_False);
  }
  return truth;
}

Step PopJumpIf(Execution& m, int distance, int when) {
  const int truth = TruthOfTop(m);
  if (truth < 0) return Step::kRaised;
  m.Drop();
  return truth == when ? Go(m, distance) : Step::kNext;
}

Step PopJumpIfNone(Execution& m, int distance, bool when) {
  const bool none = m.Peek(1) == Py_None;
  if (!IsConstant(m)) Operation(m, Op::kIsNone, 1).Succeeded(none ? Py_True : Py_False);
  m.Drop();
  return none == when ? Go(m, distance) : Step::kNext;
}

Step JumpOrPop(Execution& m, int distance, int when) {
  const int truth = TruthOfTop(m);
  if (truth < 0) return Step::kRaised;
  if (truth == when) {
    m.next += distance;
  } else {
    m.Drop();
  }
  return Step::kNext;
}

}  // namespace

OPCODE(Jump, "--") {
  m.next += arg;
  return Step::kNext;
}

OPCODE(JumpBack, "--") { return Go(m, arg); }

OPCODE(PopJumpIfFalse, "value --") { return PopJumpIf(m, arg, 0); }
OPCODE(PopJumpIfTrue, "value --") { return PopJumpIf(m, arg, 1); }
OPCODE(PopJumpIfNone, "value --") { return PopJumpIfNone(m, arg, true); }
OPCODE(PopJumpIfNotNone, "value --") { return PopJumpIfNone(m, arg, false); }
OPCODE(JumpIfFalseOrPop, "value -- [value]") { return JumpOrPop(m, arg, 0); }
OPCODE(JumpIfTrueOrPop, "value -- [value]") { return JumpOrPop(m, arg, 1); }

}  // namespace frametap::opcodes
