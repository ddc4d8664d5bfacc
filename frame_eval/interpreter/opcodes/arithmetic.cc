// Unary and binary operators.
#include "frame_eval/interpreter/interpreter.h"

// For the operators' numbers (NB_ADD …). Last, because it also defines macros named after opcodes.
#include <opcode.h>

namespace frametap::opcodes {
namespace {

PyObject* Power(PyObject* left, PyObject* right) { return PyNumber_Power(left, right, Py_None); }
PyObject* InPlacePower(PyObject* left, PyObject* right) { return PyNumber_InPlacePower(left, right, Py_None); }

struct BinaryTable {
  binaryfunc functions[NB_INPLACE_XOR + 1] = {};

  constexpr BinaryTable() {
    functions[NB_ADD] = PyNumber_Add;
    functions[NB_AND] = PyNumber_And;
    functions[NB_FLOOR_DIVIDE] = PyNumber_FloorDivide;
    functions[NB_LSHIFT] = PyNumber_Lshift;
    functions[NB_MATRIX_MULTIPLY] = PyNumber_MatrixMultiply;
    functions[NB_MULTIPLY] = PyNumber_Multiply;
    functions[NB_REMAINDER] = PyNumber_Remainder;
    functions[NB_OR] = PyNumber_Or;
    functions[NB_POWER] = Power;
    functions[NB_RSHIFT] = PyNumber_Rshift;
    functions[NB_SUBTRACT] = PyNumber_Subtract;
    functions[NB_TRUE_DIVIDE] = PyNumber_TrueDivide;
    functions[NB_XOR] = PyNumber_Xor;
    functions[NB_INPLACE_ADD] = PyNumber_InPlaceAdd;
    functions[NB_INPLACE_AND] = PyNumber_InPlaceAnd;
    functions[NB_INPLACE_FLOOR_DIVIDE] = PyNumber_InPlaceFloorDivide;
    functions[NB_INPLACE_LSHIFT] = PyNumber_InPlaceLshift;
    functions[NB_INPLACE_MATRIX_MULTIPLY] = PyNumber_InPlaceMatrixMultiply;
    functions[NB_INPLACE_MULTIPLY] = PyNumber_InPlaceMultiply;
    functions[NB_INPLACE_REMAINDER] = PyNumber_InPlaceRemainder;
    functions[NB_INPLACE_OR] = PyNumber_InPlaceOr;
    functions[NB_INPLACE_POWER] = InPlacePower;
    functions[NB_INPLACE_RSHIFT] = PyNumber_InPlaceRshift;
    functions[NB_INPLACE_SUBTRACT] = PyNumber_InPlaceSubtract;
    functions[NB_INPLACE_TRUE_DIVIDE] = PyNumber_InPlaceTrueDivide;
    functions[NB_INPLACE_XOR] = PyNumber_InPlaceXor;
  }
};

const BinaryTable kBinary;

Step Unary(Execution& m, int kind, unaryfunc function) {
  Operation op(m, Op::kUnary, 1, kind);
  return op.Replace(1, function(m.Peek(1)));
}

// `text = text + more` where the local holds the only other reference: it is grown in place, as CPython does, for
// otherwise a loop that appends would copy everything each time.
bool AppendInPlace(Execution& m) {
  PyObject* left = m.Peek(2);
  if (m.traced || !PyUnicode_CheckExact(left) || !PyUnicode_CheckExact(m.Peek(1)) || Py_REFCNT(left) != 2) return false;
  int slot = m.NextStore();
  if (slot < 0 || m.objects[slot] != left) return false;
  m.SetLocal(slot, nullptr, {});
  PyUnicode_Append(&m.Peek(2), m.Peek(1));
  return true;
}

PyObject* Not(PyObject* value) {
  int truth = PyObject_IsTrue(value);
  return truth < 0 ? nullptr : NewBool(truth == 0);
}

}  // namespace

OPCODE(UnaryPositive, "value -- result") { return Unary(m, 0, PyNumber_Positive); }
OPCODE(UnaryNegative, "value -- result") { return Unary(m, 1, PyNumber_Negative); }
OPCODE(UnaryNot, "value -- result") { return Unary(m, 2, Not); }
OPCODE(UnaryInvert, "value -- result") { return Unary(m, 3, PyNumber_Invert); }

OPCODE(BinaryOp, "left right -- result") {
  if ((arg == NB_ADD || arg == NB_INPLACE_ADD) && AppendInPlace(m)) {
    m.Drop();
    return m.Peek(1) == nullptr ? Step::kRaised : Step::kNext;
  }
  Operation op(m, Op::kBinary, 2, arg);
  return op.Replace(2, kBinary.functions[arg](m.Peek(2), m.Peek(1)));
}

}  // namespace frametap::opcodes
