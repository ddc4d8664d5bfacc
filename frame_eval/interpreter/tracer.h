// Tracer: receives the events of the instructions that the interpreter runs. The interpreter is complete without one:
// it then runs the frame as CPython does.
//   I1  AtInstruction comes before each instruction; an instruction begins at its first EXTENDED_ARG, and [KW_NAMES]
//       PRECALL CALL is one instruction. Between two AtInstruction calls the operands of the instruction stay on the
//       value stack (f.depth does not change) until After has been called, so that the frame can be cut at the
//       instruction's start.
//   I2  Before is called with the operands in place and may end the trace; it never changes the frame, but may leave
//       the result of a look-up in `answer`, or refuse the operation: then that is not done, and the instruction raises.
//       After is called when the operation has succeeded, Raised when it raised; neither if Before has refused it, or
//       was not called because the frame is not traced. Where a variable has no value, Raised is called without Before
//       (ReadsVariable). A jump on True, False or None without a shadow, a constant of the trace, is a mere move.
//   I3  The interpreter moves shadows with the objects (loads, stores, COPY, SWAP, POP) and takes the shadow of a
//       result from After (kNone where the frame is not traced).
// Not here: opcode numbers, private layouts (cpython/), what a callable does (callables/).
#pragma once

#include <Python.h>

#include "frame_eval/interpreter/shadow.h"

struct _PyInterpreterFrame;

namespace frametap {

// The operations that a tracer receives. Operands (`in`) are bottom of stack first.
enum class Op : uint8_t {
  kUnary,         // arg: 0 + , 1 - , 2 not, 3 ~                       in: x
  kBinary,        // arg: NB_ADD … NB_INPLACE_XOR                      in: left right
  kCompare,       // arg: Py_LT … Py_GE                                in: left right
  kIs,            // arg: 0 is, 1 is not                               in: left right
  kContains,      // arg: 0 in, 1 not in                               in: item container
  kSubscr,        //                                                   in: container key
  kStoreSubscr,   //                                                   in: value container key
  kDeleteSubscr,  //                                                   in: container key
  kLoadAttr,      // name                                              in: owner
  kLoadMethod,    // name; arg in After: 1 if the result is an unbound method that takes `owner` as self     in: owner
  kStoreAttr,     // name                                              in: value owner
  kDeleteAttr,    // name                                              in: owner
  kLoadConst,     // of tuples only; After only
  kLoadGlobal,    // name; arg: 0 found in globals, 1 in builtins; After only
  kLoadName,      // name; arg: 0 locals, 1 globals, 2 builtins; After only
  kStoreName,     // name                                              in: value
  kDeleteName,    // name
  kStoreGlobal,   // name                                              in: value
  kDeleteGlobal,  // name
  kLoadDeref,     // arg: localsplus index; result is the content; After only
  kStoreDeref,    // arg: localsplus index                             in: value
  kDeleteDeref,   // arg: localsplus index
  kMakeCell,      // arg: localsplus index; result is the new cell; After only (the shadow given is put beside the cell)
  kCall,          // kwnames; in: callable args… (after kLoadMethod: function self args…)
  kCallEx,        //                                                   in: callable args-tuple [kwargs-dict]
  kGetIter,       //                                                   in: x
  kForIter,       // After with null: exhausted                        in: iterator
  kUnpack,        // arg: count; After once an item, in order (arg: its number)     in: sequence
  kUnpackEx,      // arg: as UNPACK_EX; After once an item             in: sequence
  kBuildTuple,    //                                                   in: items
  kBuildList,     //                                                   in: items
  kBuildSet,      //                                                   in: items
  kBuildMap,      //                                                   in: k0 v0 k1 v1 …
  kBuildConstKeyMap,  //                                                   in: v0 v1 … keys-tuple
  kBuildSlice,        //                                                   in: start stop [step]
  kBuildString,       //                                                   in: parts
  kFormatValue,       // arg: FORMAT_VALUE's                               in: value [spec]
  kListAppend,        //                                                   in: list value
  kSetAdd,            //                                                   in: set value
  kMapAdd,            //                                                   in: dict key value
  kListExtend,        //                                                   in: list iterable
  kSetUpdate,         //                                                   in: set iterable
  kDictUpdate,        //                                                   in: dict mapping
  kDictMerge,         //                                                   in: dict mapping
  kListToTuple,       //                                                   in: list
  kMakeFunction,      // arg: flags                                        in: [defaults] [kwdefaults] [annotations]
                      // [closure] code
  kLoadClosure,       // arg: localsplus index; result is the cell; After only
  kTruth,             // a jump tests x                                    in: x
  kIsNone,            // a jump compares x with None                       in: x
  kImportName,        // name                                              in: level fromlist
  kImportFrom,        // name                                              in: module
  kImportStar,        //                                                   in: module
  kBeforeWith,        // result: what __enter__ gave                       in: manager
  kWithExit,          // __exit__ in exceptional exit (WITH_EXCEPT_START)  in: exit type value traceback
  kRaise,             // RAISE_VARARGS                                     in: [exception [cause]]
  kExcMatch,          // CHECK_EXC_MATCH, CHECK_EG_MATCH                   in: exception type
  kGetLen,            //                                                   in: x
  kMatch,             // MATCH_MAPPING, MATCH_SEQUENCE, MATCH_KEYS, MATCH_CLASS   in: operands
  kAsync,             // GET_AWAITABLE, GET_AITER, GET_ANEXT, SEND, …      in: operands
  kYield,             // YIELD_VALUE: the frame is about to be left        in: value
  kOther,             // anything else that is not a mere move             in: operands
};

// Whether it is the op of an instruction that has met a variable without a value. A local's is kOther.
inline bool ReadsVariable(Op op) {
  return op == Op::kLoadGlobal || op == Op::kLoadName || op == Op::kLoadDeref || op == Op::kDeleteDeref ||
         op == Op::kOther;
}

struct FrameState;

struct Event {
  Op op = Op::kOther;
  int arg = 0;
  PyObject* name = nullptr;
  PyObject* const* in = nullptr;    // borrowed
  const Shadow* shadows = nullptr;  // beside `in`
  int n = 0;
  PyObject* kwnames = nullptr;  // kCall: tuple or null; its values are the last operands
};

enum class FrameEnd : uint8_t { kReturned, kYielded, kGenerator, kHandedOver, kRaised };

class Tracer {
 public:
  enum class Go : uint8_t {
    kOn,      // run the instruction
    kReload,  // offset, depth, locals or stack were changed: read them again, then ask again
    kReturn,  // leave the frame with f.result (owned, not null); the stack is empty
    kYield,   // as kReturn, but the frame is a generator's and stays, to continue at f.offset with its stack
    kRaise,   // an exception is set: unwind as if the instruction had raised it
    kLeave,   // hand the frame to CPython for good
  };

  virtual ~Tracer() = default;
  // A frame has come to the interpreter. Sets f.traced.
  virtual void Enter(FrameState& f) = 0;
  // `value` (borrowed, may be null) and its shadow: the returned or yielded value; for kGenerator the generator.
  virtual void Leave(FrameState& f, FrameEnd end, PyObject* value, Shadow shadow) = 0;
  virtual Go AtInstruction(FrameState& f) = 0;
  virtual bool Before(FrameState& f, const Event& event) = 0;  // false: refused, with an exception set
  virtual Shadow After(FrameState& f, const Event& event, PyObject* result) = 0;
  virtual void Raised(FrameState& f, const Event& event) = 0;  // the error indicator is set and must stay
};

// One running frame, as interpreter and tracer share it. `objects[i]` and `shadows[i]` are beside each other for
// locals, cells and free variables (i < nlocalsplus) and for the value stack (from nlocalsplus on).
struct FrameState {
  _PyInterpreterFrame* raw = nullptr;
  PyCodeObject* code = nullptr;
  PyFunctionObject* function = nullptr;
  PyObject** objects = nullptr;
  Shadow* shadows = nullptr;  // never null; all kNone where the frame is not traced
  int nlocalsplus = 0;
  int depth = 0;               // of the value stack at the start of the instruction
  int offset = 0;              // byte offset of the instruction's first code unit
  bool is_generator = false;   // a generator's or coroutine's frame
  bool resumed = false;        // Enter: a generator frame that has run before
  bool traced = false;         // report Before, After, Raised to the tracer
  bool observed = false;       // report AtInstruction to the tracer; the tracer sets it in Enter
  int handlers = 0;            // exceptions that the frame is handling, as far as it ran here
  PyObject* result = nullptr;  // Go::kReturn
  // Before of kLoadAttr, kLoadMethod and kCall: the value, owned; the look-up or call is left out then.
  PyObject* answer = nullptr;
  void* tracer_data = nullptr;  // the tracer's own, null at Enter
};

}  // namespace frametap
