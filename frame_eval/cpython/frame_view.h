// The version-neutral window on CPython's frames and code objects. Implemented once for each minor version in
// frame_eval/cpython/3.x; nothing outside that folder includes pycore_*.h or tests PY_VERSION_HEX.
#pragma once

#include <Python.h>

#include <vector>

#include "frame_eval/cpython/instruction_roles.h"
#include "guards/collect/guard_site.h"
#include "guards/cpython/suspended_frame.h"
#include "guards/ref.h"
#include "ir/graph/position.h"

struct _PyInterpreterFrame;

namespace frametap {

struct FrameState;
class Tracer;

// The position of the expression of the instruction at a byte offset (co_positions of the instruction that acts: CALL
// for a call group). `function` is co_qualname with everything up to "<locals>." removed.
Position PositionAt(PyCodeObject* code, int offset);

// The positions of a code object's instructions, for who asks for many of them: CPython goes through its table from the
// start for each one.
class PositionTable {
 public:
  explicit PositionTable(PyCodeObject* code);
  Position At(int offset) const;

 private:
  struct Place {
    int start;  // code unit
    int line;   // 0 if none
    int col;    // -1 if none
  };
  PyCodeObject* code_;         // borrowed
  Position names_;             // function and file
  std::vector<Place> places_;  // by `start`; each goes up to the next one
};

// Locals (localsplus indices) that may be read before they are written if the frame continues at `offset`. Cells and
// free variables always count as live. Computed once a code object and kept (co_extra or a side table freed with it).
std::vector<bool> LiveLocals(PyCodeObject* code, int offset);

// Whether the code assigns to an attribute of this name (interned), of whichever object.
bool StoresAttribute(PyCodeObject* code, PyObject* name);
bool AssignsLocal(PyCodeObject* code, int slot);  // … or deletes it

// Name of localsplus[i]; whether it is a plain local, a cell (own variable captured by inner functions) or free.
enum class SlotKind : uint8_t { kLocal, kCell, kFree };
PyObject* SlotName(PyCodeObject* code, int slot);  // borrowed
SlotKind KindOfSlot(PyCodeObject* code, int slot);
int SlotCount(PyCodeObject* code);       // nlocalsplus
int StackSize(PyCodeObject* code);       // co_stacksize
int ParameterCount(PyCodeObject* code);  // slots that the call fills: the first ones

// The call instruction at which a frame stands, operands in place.
struct CallSite {
  PyObject* callable = nullptr;  // borrowed; null: it stands at another instruction
  int below = 0;                 // depth of the value stack without the operands
};
CallSite CallSiteOf(const FrameState& f);
// `callee` was called while `caller` was the innermost Python frame.
bool IsNextFrame(const FrameState& caller, const FrameState& callee);
// Others hold the frame's object (a traceback does), and will find in it the variables with which the frame ends.
bool IsHeldByOthers(const FrameState& f);

// Facts of the instruction that begins at `offset`.
struct InstructionInfo {
  int next;          // offset of the instruction after it (caches skipped)
  const char* name;  // "CALL", "POP_JUMP_FORWARD_IF_FALSE": for logs and tests
  bool is_branch;    // conditional jump
  bool is_backward;  // a jump back (loop)
  bool is_return;
  InstructionRole role;
};
InstructionInfo InstructionAt(PyCodeObject* code, int offset);

// Runs the frame on with our interpreter until it is left. Called by the hook only.
PyObject* Interpret(PyThreadState* ts, _PyInterpreterFrame* raw, Tracer* tracer);

// Offset at which a fresh frame of this code starts to run user-visible instructions (after COPY_FREE_VARS, MAKE_CELL,
// RESUME and the like).
int StartOffset(PyCodeObject* code);

// The frame that lives in a generator, or the like; still the same address when it has ended.
_PyInterpreterFrame* FrameOfGenerator(PyObject* generator);

// The instruction at which a frame takes an item for a loop, and where it continues: with an item, and at the end.
struct TakeSite {
  PyObject* iterator = nullptr;  // borrowed, on top of the stack; null: it stands at another instruction
  int next = 0, end = 0;
};
TakeSite TakeSiteOf(const FrameState& f);

// A generator function's code, of which a frame is no more than its locals and its stack: no cells of its own, no
// blocks.
bool IsPlainGenerator(PyCodeObject* code);

// Makes a generator that is suspended, or has not begun, continue at `offset` with these locals (others stay) and this
// stack. The old content dies when all is in place.
void PutIntoGenerator(PyObject* generator, int offset, const std::vector<int>& slots, std::vector<Ref<>> locals,
                      std::vector<Ref<>> stack);
void UnbindLocals(PyObject* generator);  // of one that has not begun: its arguments
bool IsRunning(PyObject* generator);
bool SuspendedFrameOf(PyObject* generator, SuspendedFrame* frame);  // false: it is not suspended, or no generator

// Whether code runs if a generator, or the like, ends now: it has blocks to leave, or something to complain of.
bool EndRunsCodeNow(PyObject* generator);

// The exception that is set has come through a frame of `function`, which was never made, at the instruction at `offset`.
void AddTraceback(PyFunctionObject* function, int offset);

// "" if the running interpreter is the one this was built for, else a sentence for the user.
const char* VersionProblem();

// Returns whether an except* statement puts a single exception that its clauses raised into a group. CPython did so
// before 3.11.4.
bool GroupsOneException();

}  // namespace frametap
