// Execution: one frame while our interpreter runs it, as the opcode handlers see it. The loop itself is in
// interpreter.cc.
//   E1  A handler that does an operation leaves the operands on the value stack until the operation is over (Operation
//       does this). The frame can then be cut at the start of the instruction while Python code runs inside it.
//   E2  Any operation may run Python code, and that may end the trace: `traced` is asked again after it.
//   E3  Objects on the value stack are owned by it. Before an object is released it has been taken off the stack.
//   E4  A handler that returns kRaised has set the error indicator; what is left on the stack is released by the loop.
//   E5  An operation that the tracer refuses leaves its handler as a C++ exception (Refused), so that no handler can go on
//       with it. What a handler owns at that point is held by a Ref.
// Not here: opcode numbers and arguments (cpython/3.x/opcodes.def), frame layouts (cpython/3.x/raw_frame.h), what the
// operations do (opcodes/).
#pragma once

#include <Python.h>

#include "frame_eval/interpreter/tracer.h"

namespace frametap {

enum class Step : uint8_t {
  kNext,             // done
  kCheck,            // done; signals and other threads' requests are looked at before the next instruction
  kRaised,           // the operation raised: this frame is to be entered in the traceback
  kReraised,         // an exception is leaving: its traceback is complete
  kReturned,         // the frame ends with `result`
  kYielded,          // the generator's frame is left with `result`
  kMakesGenerator,   // CPython runs this instruction: it moves the frame into a generator and returns that
  kYieldsInCPython,  // CPython runs this instruction and the one after it: they wrap a value and yield it
  kHandOver,         // CPython takes the frame from this instruction on, for good
};

class Execution : public FrameState {
 public:
  Execution(PyThreadState* ts, Tracer* tracer) : ts(ts), tracer(tracer) {}

  PyThreadState* const ts;
  Tracer* const tracer;
  PyObject** base = nullptr;        // of the value stack
  PyObject** top = nullptr;         // one above the topmost value
  const uint16_t* first = nullptr;  // code units
  const uint16_t* next = nullptr;   // the instruction after this one; a jump adds to it
  PyObject* names = nullptr;
  PyObject* consts = nullptr;
  PyObject* globals = nullptr;
  PyObject* builtins = nullptr;
  PyObject* kwnames = nullptr;  // KW_NAMES of this call group; borrowed
  Shadow result_shadow;
  int acting = 0;      // index of the code unit of the instruction that acts, behind its prefixes
  bool leave = false;  // the tracer failed: hand the frame over at the next instruction

  PyObject* Name(int i) const { return PyTuple_GET_ITEM(names, i); }
  PyObject* Locals() const;  // the namespace of module and class bodies; borrowed, may be null
  // What reraising restores: the instruction that raised first, as an index of code units.
  void SetLastInstruction(int index);
  int LastInstruction() const;

  Shadow* ShadowOf(PyObject** slot) const { return shadows + (slot - objects); }
  PyObject*& Peek(int n) const { return top[-n]; }  // 1 is the topmost
  Shadow& PeekShadow(int n) const { return *ShadowOf(top - n); }

  void Push(PyObject* owned, Shadow shadow = {}) {
    *ShadowOf(top) = shadow;
    *top++ = owned;
  }
  PyObject* Pop() { return *--top; }  // the caller owns it
  void Drop() {
    PyObject* object = *--top;
    Py_XDECREF(object);
  }
  // Releases the values from `from` on, lowest first.
  void DropFrom(PyObject** from) {
    PyObject** end = top;
    top = from;
    for (PyObject** slot = from; slot < end; ++slot) Py_XDECREF(*slot);
  }
  void SetLocal(int slot, PyObject* owned, Shadow shadow) {
    PyObject* old = objects[slot];
    objects[slot] = owned;
    shadows[slot] = shadow;
    Py_XDECREF(old);
  }

  // Tells the tracer; a tracer that throws is not asked again, and the frame is handed over at the next instruction.
  bool TellBefore(const Event& event) noexcept;  // false: refused, with an exception set
  Shadow TellAfter(const Event& event, PyObject* result) noexcept;
  void TellRaised(const Event& event) noexcept;
  void Fault() noexcept;
  void FaultOfTracer() noexcept;

  Shadow AfterOnly(Op op, int arg, PyObject* name, PyObject* result) {
    if (!traced) return {};
    Event event;
    event.op = op;
    event.arg = arg;
    event.name = name;
    return TellAfter(event, result);
  }

  // The local that the next instruction stores into, or -1.
  int NextStore() const;

  // NameError and its kinds, with the interpreter's own words.
  Step Unbound(int slot);
  Step NotDefined(PyObject* name);

  // Reports that an instruction without an operation before has raised.
  Step RaisedOnly(Op op, Step raised) {
    if (!traced) return raised;
    Event event;
    event.op = op;
    TellRaised(event);
    return raised;
  }
};

struct Refused {};  // by the tracer; a Python exception is set

// One operation of the instruction: reported to the tracer before, and after its success or failure.
class Operation {
 public:
  // The `n` topmost values are the operands.
  Operation(Execution& m, Op op, int n, int arg = 0, PyObject* name = nullptr)
      : Operation(m, op, m.top - n, m.ShadowOf(m.top - n), n, arg, name) {}
  // The operands are elsewhere.
  Operation(Execution& m, Op op, PyObject* const* in, const Shadow* shadows, int n, int arg = 0,
            PyObject* name = nullptr, PyObject* kwnames = nullptr)
      : m_(m), told_(m.traced) {
    if (!told_) return;
    event_ = {op, arg, name, in, shadows, n, kwnames};
    if (!m.TellBefore(event_)) throw Refused();
  }

  void SetArg(int arg) { event_.arg = arg; }

  Shadow Succeeded(PyObject* result) { return told_ && m_.traced ? m_.TellAfter(event_, result) : Shadow{}; }
  Step Raised() {
    if (told_ && m_.traced) m_.TellRaised(event_);
    return Step::kRaised;
  }

  // The operands from `from` up give way to the result (owned; null: raised).
  Step Replace(PyObject** from, PyObject* result) {
    if (result == nullptr) return Raised();
    Shadow shadow = Succeeded(result);
    PyObject* lowest = *from;
    PyObject** end = m_.top;
    *from = result;
    *m_.ShadowOf(from) = shadow;
    m_.top = from + 1;
    Py_XDECREF(lowest);
    for (PyObject** slot = from + 1; slot < end; ++slot) Py_XDECREF(*slot);
    return Step::kNext;
  }
  Step Replace(int n, PyObject* result) { return Replace(m_.top - n, result); }
  // The result comes on top of the operands.
  Step Push(PyObject* result) {
    if (result == nullptr) return Raised();
    m_.Push(result, Succeeded(result));
    return Step::kNext;
  }
  // No result; the `n` topmost values are released. `status` < 0: raised.
  Step Finish(int n, int status) {
    if (status < 0) return Raised();
    Succeeded(nullptr);
    m_.DropFrom(m_.top - n);
    return Step::kNext;
  }

 private:
  Execution& m_;
  bool told_;
  Event event_;
};

// Operands that do not lie side by side on the stack.
template <int N>
struct Gathered {
  PyObject* in[N];
  Shadow shadows[N];
  Gathered(const Execution& m, const int (&depths)[N]) {  // distances from the top
    for (int i = 0; i < N; ++i) {
      in[i] = m.Peek(depths[i]);
      shadows[i] = m.PeekShadow(depths[i]);
    }
  }
};

using Handler = Step (*)(Execution& m, int arg);

inline PyObject* NewBool(bool value) { return Py_NewRef(value ? Py_True : Py_False); }

}  // namespace frametap

// An opcode's meaning, in namespace frametap::opcodes. `effect` is its stack effect, for the reader.
#define OPCODE(name, effect) Step name([[maybe_unused]] Execution& m, [[maybe_unused]] int arg)
