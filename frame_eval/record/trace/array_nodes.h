// A call of NumPy on arrays is a node of the graph, and the node makes the call again with the objects of the run. An array
// is a value of the graph as the Python object itself (ArrayAsValue). So memory that is shared with tensors and views, owners,
// `base`, flags and the types of results are NumPy's business in a replay as in plain Python.
//   N1  Objects are known by pointers that come from the imported module (guards/objects/array_view.h). An instance of a subclass, and
//       a dtype that torch does not have, are no arrays: a call on them ends the graph.
//   N2  How each operand is laid out is fixed, down to strides and flags, and so are all arguments that are not values of the
//       graph. So dtypes, sizes, strides and types of all results follow. The node checks them in each run (AssumptionFails).
//   N3  A result is a new object, or one of the operands: the same one in each run.
//   N4  A row of the table says whether a call gives new memory, may give memory of its operands, or writes to its first
//       operand (ArrayAccess). A write that may reach memory from before the recording ends the graph before the call.
//   N5  A node runs with all reactions of NumPy to errors of floats set to `raise`, except those that are ignored
//       (np.errstate). So a run that would warn is taken back, and plain Python warns at the program's line. The same holds
//       for exceptions. Where it could not be taken back, because an op has written to older memory, the call ends the graph.
//       A call in a block of np.errstate that the trace has entered ends the graph, too.
//   N6  Elements decide nothing that the recorder relies on. A numpy.bool ends the graph, as there are two of them and the
//       program branches on it. A float or an int (item, float(x)) is a number of the graph.
//   N7  Only a backend that runs the recorded ops takes such nodes.
// Not here: which functions (callables/numpy_table.cc), functions of plain numbers (likewise).
#pragma once

#include <ATen/core/ivalue.h>
#include <Python.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "frame_eval/record/trace.h"
#include "frame_eval/record/trace/python_ops.h"
#include "guards/objects/array_view.h"
#include "guards/ref.h"

namespace frametap {

// N4
enum class ArrayAccess : uint8_t {
  kReads,     // gives new memory
  kShares,    // may give memory of an operand, or the operand
  kWrites,    // writes to the first operand
  kNumber,    // gives a Python number
  kConverts,  // as kShares, and a tensor may be among the arguments
};

// An argument: a constant, an operand, or a sequence of arguments.
struct ArrayPart {
  enum class Kind : uint8_t { kConstant, kOperand, kTuple, kList };
  Kind kind = Kind::kConstant;
  Ref<> constant;
  size_t operand = 0;
  std::vector<ArrayPart> items;
};

// The first operator in place, as Event::arg: one for each operator before it.
constexpr int kInPlaceFrom = 13;

struct ArrayCall {
  enum class What : uint8_t { kCall, kAttribute, kUnary, kBinary, kCompare, kItem, kStore };
  What what = What::kCall;
  int op = 0;  // as Event::arg; kCompare: Py_LT and the like
  ArrayAccess access = ArrayAccess::kReads;
  Ref<> callable;  // kCall; kAttribute: the name
  Ref<> names;     // of the arguments by name, which are the last ones; may be null
  std::vector<ArrayPart> args;
  std::string text;  // "numpy.sin", "+"

  // Only the recording needs these.
  struct Operand {
    PyObject* object = nullptr;  // borrowed
    ValueId value;               // invalid: a number, `open`
    Shadow open;
  };
  AtenRecorder::Mark since;
  std::vector<Operand> operands;
  bool takes_tensors = false;
  bool leaves_open = false;  // numbers among the arguments

  // N2, N3
  enum class Gives : uint8_t { kArray, kArrayNumber, kNumber, kTensor, kOperand, kNone };
  Gives gives = Gives::kNone;
  size_t given = 0;              // kOperand: which one
  PyTypeObject* type = nullptr;  // of a number; never freed
  ArrayFacts facts;
  Counted<"calls of NumPy"> counted;
};

// Makes the parts of a call, and fixes what is not an operand.
class ArrayParts {
 public:
  ArrayParts(Trace& trace, ArrayCall& call) : trace_(trace), call_(call) {}
  void Add(PyObject* object, Shadow shadow);

 private:
  ArrayPart PartOf(PyObject* object, Shadow shadow, int depth);
  ArrayPart Sequence(PyObject* object, int depth);
  ArrayPart TensorOperand(PyObject* object);
  ArrayPart Operand(ArrayCall::Operand operand);

  Trace& trace_;
  ArrayCall& call_;
};

// The recorder's side. An operand is an array, or a number of NumPy's that is not a constant.
bool IsOperandOfNumPy(Trace& trace, PyObject* object);
inline bool IsArrayOperand(Trace& trace, PyObject* object) {
  return types_of_numpy.MayHold(object) && IsOperandOfNumPy(trace, object);
}
bool TakesArrays(Trace& trace, const Call& call);
void ReadArray(Trace& trace, PyObject* object);  // how it is laid out; of a number, its type
ValueId ArrayValue(Trace& trace, PyObject* object);

// Before an operation. The last two return false if no operand is an array.
void CallArrays(Trace& trace, Call& call, ArrayAccess access);
bool OperatorOfArrays(Trace& trace, FrameNote& note, const Event& e);
inline bool ArrayOperator(Trace& trace, FrameNote& note, const Event& e) {
  const auto may_be_array = [&](int i) { return i < e.n && e.in[i] != nullptr && types_of_numpy.MayHold(e.in[i]); };
  const bool may_be_operator = may_be_array(0) || may_be_array(1) || e.op == Op::kCompare;  // also of their dtypes
  return may_be_operator && OperatorOfArrays(trace, note, e);
}
bool AttributeOfArray(Trace& trace, FrameNote& note, PyObject* owner, PyObject* name);
inline bool ArrayAttribute(Trace& trace, FrameNote& note, PyObject* owner, PyObject* name) {
  return types_of_numpy.MayHold(owner) && AttributeOfArray(trace, note, owner, name);
}
// After it. `value_of` gives the value of a number that is not fixed.
Shadow ArrayResult(Trace& trace, FrameNote& note, PyObject* result, absl::FunctionRef<ValueId(Shadow)> value_of);

// Adds a node for the Python number that a number of NumPy's stands for where torch takes it.
Shadow AddPlainNumber(Trace& trace, PyObject* number, Ref<>* plain);

// If NumPy is loaded, and is one that is known. Once, at import.
bool RegisterArrayOps();

bool IsArrayOp(const c10::OperatorHandle& op);
const char* ArrayOpOf(ArrayAccess access);

using KeptArrayCalls = KeptCalls<std::shared_ptr<const ArrayCall>>;

}  // namespace frametap
