#include "frame_eval/record/numbers/operands.h"

#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/segment/changes.h"
#include "guards/throw_if_null.h"

namespace frametap {
namespace {

// Returns whether a run of the graph can be taken back where an op fails.
bool CanBeTakenBack(const Trace& trace) {
  const WrittenMemory& memory = trace.aten.memory;
  return !memory.writes_inputs() || (memory.storages() != nullptr && memory.bytes() <= kMostBytesCopied);
}

}  // namespace

bool TakesOperand(Trace& trace, PyObject* object, Shadow shadow, int py_compare_op) {
  static PyObject* const zero = Must(PyLong_FromLong(0)).Release();
  const bool is_element =
      shadow.kind == Shadow::Kind::kValue && trace.aten.element_numbers.Contains(ValueId(shadow.id));
  if (is_element && CanBeTakenBack(trace)) return Must(PyObject_RichCompareBool(object, zero, py_compare_op)) == 1;
  return DecideNumbers(trace, object, shadow, zero, Shadow(), py_compare_op, true);
}

bool HasNoResult(BuiltinOp op, std::initializer_list<std::pair<PyObject*, Shadow>> operands) {
  Number numbers[2], unused;
  size_t known = 0;
  for (const auto& [object, shadow] : operands) {
    if (object == nullptr) continue;
    const bool fits = NumberOf(object, &numbers[known]);
    if (!fits && shadow.kind == Shadow::Kind::kNone) return true;
    known += fits;
  }
  return known == operands.size() && !Compute(op, numbers[0], numbers[1], &unused);
}

}  // namespace frametap
