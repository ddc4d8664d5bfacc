#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/interpreter/tracer.h"

#include <frameobject.h>

#include <array>
#include <cstring>
#include <utility>

#include "frame_eval/cpython/3.11/decode.h"
#include "frame_eval/cpython/3.11/raw_frame.h"
#include "frame_eval/cpython/eval_function.h"
#include "frame_eval/cpython/exception_table.h"
#include "frame_eval/cpython/liveness.h"
#include "frame_eval/cpython/private_api.h"
#include "guards/cpython/watch.h"
#include "guards/objects/dict_items.h"
#include "guards/ref.h"

namespace frametap {
namespace {

// Localsplus kinds of this version (they are not in an installed public header).
enum : unsigned char { kKindLocal = 0x20, kKindCell = 0x40, kKindFree = 0x80 };

const uint16_t* Units(PyCodeObject* code) { return _PyCode_CODE(code); }
int UnitCount(PyCodeObject* code) { return static_cast<int>(Py_SIZE(code)); }
const Decoded& At(PyCodeObject* code, int index) { return kDecode[Units(code)[index] & 0xff]; }

struct Instruction {
  const Decoded& row;
  int acting, arg, next;
};

Instruction Whole(PyCodeObject* code, int index) {
  int arg = Units(code)[index] >> 8;
  while (At(code, index).prefix != Prefix::kNone) {
    const bool extends = At(code, index).prefix == Prefix::kExtendedArg;
    index += 1 + At(code, index).caches;
    const int low = Units(code)[index] >> 8;
    arg = extends ? arg << 8 | low : low;
  }
  const Decoded& row = At(code, index);
  return {row, index, arg, index + 1 + row.caches};
}

bool Is(const Decoded& row, const char* name) { return std::strcmp(NameOf(row), name) == 0; }
bool Has(const Decoded& row, const char* part) { return std::strstr(NameOf(row), part) != nullptr; }

}  // namespace

EvalFunction EvalDefault() { return _PyEval_EvalFrameDefault; }
EvalFunction GetEvalFunction() { return _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()); }
void SetEvalFunction(EvalFunction function) {
  _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), function);
}

PyObject* LookupSpecial(PyObject* object, PyObject* name) { return _PyObject_LookupSpecial(object, name); }

// use_tracing alone is off while a trace function itself runs.
bool IsTraced(PyThreadState* ts) {
  return ts->cframe->use_tracing != 0 || ts->c_tracefunc != nullptr || ts->c_profilefunc != nullptr;
}

PyObject* const* ErrorIndicator(PyThreadState* ts) { return Layout311::ErrorIndicator(ts); }

TracingPause::TracingPause()
    : thread_(PyThreadState_Get()),
      trace_(std::exchange(thread_->c_tracefunc, nullptr)),
      profile_(std::exchange(thread_->c_profilefunc, nullptr)),
      trace_object_(thread_->c_traceobj),
      profile_object_(thread_->c_profileobj),
      was_tracing_(thread_->cframe->use_tracing) {
  thread_->cframe->use_tracing = 0;
}

TracingPause::~TracingPause() {
  if (thread_->c_tracefunc == nullptr && thread_->c_traceobj == trace_object_) thread_->c_tracefunc = trace_;
  if (thread_->c_profilefunc == nullptr && thread_->c_profileobj == profile_object_) thread_->c_profilefunc = profile_;
  const bool is_traced = thread_->c_tracefunc != nullptr || thread_->c_profilefunc != nullptr;
  thread_->cframe->use_tracing = is_traced ? (was_tracing_ != 0 ? was_tracing_ : 255) : 0;
}

// A thread (or greenlet) that has run no Python code yet has no data stack: a frame that does nothing makes it.
static void MakeDataStack() {
  ErrScope keep;
  const Ref<> names = Ref<>::Steal(PyDict_New());
  const Ref<> code = Ref<>::Steal(Py_CompileString("0", "<frametap>", Py_eval_input));
  if (names && code) Ref<>::Steal(PyEval_EvalCode(code.get(), names.get(), names.get()));
  PyErr_Clear();
}

const void* StackIdentity(PyThreadState* ts) {
  if (ts->datastack_chunk == nullptr) [[unlikely]]
    MakeDataStack();
  const _PyStackChunk* chunk = ts->datastack_chunk;
  while (chunk != nullptr && chunk->previous != nullptr) chunk = chunk->previous;
  return chunk;
}

const void* RunningFrame(PyThreadState* ts) { return Layout311::Running(ts); }

FrameFacts FactsOf(_PyInterpreterFrame* raw) {
  bool generator = IsGeneratorFrame(raw);
  bool fresh = raw->prev_instr < Units(raw->f_code) || Is(kDecode[*raw->prev_instr & 0xff], "RETURN_GENERATOR");
  return {raw->f_code, raw->f_globals, generator, generator && !fresh};
}

namespace {

// Whether a look-up in the dict runs no code of the program. One that once had another key is not marked for strings.
bool IsQuiet(PyObject* dict) {
  if (!PyDict_Check(dict)) return false;
  if (HasOnlyExactStrKeys(dict)) return true;
  for (const auto [key, value] : DictItems(dict)) {
    if (!PyUnicode_CheckExact(key)) return false;
  }
  return true;
}

// Whether a GeneratorExit that is raised at `index` leaves the frame without a trace: all that is there to handle it is
// `except` clauses for other classes of exceptions.
bool IsHandledByNobody(_PyInterpreterFrame* raw, int index) {
  PyCodeObject* code = raw->f_code;
  ExceptionHandler handler;
  while (FindHandler(code, index, &handler)) {
    if (handler.target <= index) return false;
    bool is_reraised = false;
    for (index = handler.target; !is_reraised;) {
      const auto& [row, acting, arg, next] = Whole(code, index);
      index = next;
      if (Is(row, "LOAD_GLOBAL")) {
        PyObject* name = PyTuple_GET_ITEM(code->co_names, arg >> 1);
        if (!IsQuiet(raw->f_globals) || !IsQuiet(raw->f_builtins)) return false;
        const Py_hash_t hash = PyObject_Hash(name);
        PyObject* found = _PyDict_GetItem_KnownHash(raw->f_globals, name, hash);
        if (found == nullptr) found = _PyDict_GetItem_KnownHash(raw->f_builtins, name, hash);
        if (found == nullptr || !PyExceptionClass_Check(found)) return false;
        if (PyErr_GivenExceptionMatches(PyExc_GeneratorExit, found)) return false;
      } else if (Is(row, "POP_JUMP_FORWARD_IF_FALSE")) {
        index = next + arg;
      } else if (Is(row, "RERAISE")) {
        is_reraised = true;
        index = acting;
      } else if (!Is(row, "PUSH_EXC_INFO") && !Is(row, "BUILD_TUPLE") && !Is(row, "CHECK_EXC_MATCH") &&
                 !Is(row, "COPY") && !Is(row, "POP_EXCEPT")) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace

_PyInterpreterFrame* FrameOfGenerator(PyObject* generator) {
  return reinterpret_cast<_PyInterpreterFrame*>(reinterpret_cast<PyGenObject*>(generator)->gi_iframe);
}

TakeSite TakeSiteOf(const FrameState& f) {
  if (f.depth == 0) return {};
  const auto& [row, acting, arg, next] = Whole(f.code, f.offset / 2);
  if (!Is(row, "FOR_ITER")) return {};
  return {f.objects[f.nlocalsplus + f.depth - 1], next * 2, (next + arg) * 2};
}

bool IsPlainGenerator(PyCodeObject* code) {
  constexpr int kKinds = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE;
  return (code->co_flags & kKinds) == CO_GENERATOR && code->co_ncellvars == 0 &&
         PyBytes_GET_SIZE(code->co_exceptiontable) == 0;
}

bool SuspendedFrameOf(PyObject* generator, SuspendedFrame* frame) {
  if (!PyGen_CheckExact(generator)) return false;
  const int8_t state = reinterpret_cast<PyGenObject*>(generator)->gi_frame_state;
  if (state != FRAME_SUSPENDED && state != FRAME_CREATED) return false;
  _PyInterpreterFrame* raw = FrameOfGenerator(generator);
  frame->code = raw->f_code;
  frame->function = raw->f_func;
  frame->objects = raw->localsplus;
  frame->nlocalsplus = raw->f_code->co_nlocalsplus;
  frame->depth = raw->stacktop - frame->nlocalsplus;
  frame->offset = static_cast<int>(raw->prev_instr + 1 - Units(raw->f_code)) * 2;
  return true;
}

bool IsRunning(PyObject* generator) {
  return reinterpret_cast<PyGenObject*>(generator)->gi_frame_state == FRAME_EXECUTING;
}

void UnbindLocals(PyObject* generator) {
  _PyInterpreterFrame* raw = FrameOfGenerator(generator);
  for (int i = 0; i < raw->f_code->co_nlocalsplus; ++i) {
    if (KindOfSlot(raw->f_code, i) == SlotKind::kLocal) Py_CLEAR(raw->localsplus[i]);
  }
}

void PutIntoGenerator(PyObject* generator, int offset, const std::vector<int>& slots, std::vector<Ref<>> locals,
                      std::vector<Ref<>> stack) {
  _PyInterpreterFrame* raw = FrameOfGenerator(generator);
  const int first = raw->f_code->co_nlocalsplus;
  std::vector<Ref<>> old;
  for (size_t i = 0; i < slots.size(); ++i) {
    old.push_back(Ref<>::Steal(std::exchange(raw->localsplus[slots[i]], locals[i].Release())));
  }
  for (int i = first; i < raw->stacktop; ++i) old.push_back(Ref<>::Steal(raw->localsplus[i]));
  raw->stacktop = first;
  for (Ref<>& item : stack) raw->localsplus[raw->stacktop++] = item.Release();
  SetResumePoint(raw, Units(raw->f_code) + offset / 2);
  if (offset > StartOffset(raw->f_code)) {
    reinterpret_cast<PyGenObject*>(generator)->gi_frame_state = FRAME_SUSPENDED;
  }
}

bool EndRunsCodeNow(PyObject* generator) {
  auto* self = reinterpret_cast<PyGenObject*>(generator);
  if (!PyGen_CheckExact(generator)) return self->gi_frame_state < FRAME_EXECUTING;
  if (self->gi_frame_state != FRAME_SUSPENDED) return false;
  _PyInterpreterFrame* raw = FrameOfGenerator(generator);
  const int at = static_cast<int>(raw->prev_instr - Units(raw->f_code));
  constexpr int kPlainYield = 1;  // above it: what is yielded from, or awaited, is closed too
  return Whole(raw->f_code, at + 1).arg > kPlainYield || !IsHandledByNobody(raw, at);
}

PyObject* SlotName(PyCodeObject* code, int slot) { return PyTuple_GET_ITEM(code->co_localsplusnames, slot); }

SlotKind KindOfSlot(PyCodeObject* code, int slot) {
  auto kind = static_cast<unsigned char>(PyBytes_AS_STRING(code->co_localspluskinds)[slot]);
  if (kind & kKindFree) return SlotKind::kFree;
  return kind & kKindCell ? SlotKind::kCell : SlotKind::kLocal;
}

int SlotCount(PyCodeObject* code) { return code->co_nlocalsplus; }
int StackSize(PyCodeObject* code) { return code->co_stacksize; }
int ParameterCount(PyCodeObject* code) {
  return code->co_argcount + code->co_kwonlyargcount + ((code->co_flags & CO_VARARGS) != 0) +
         ((code->co_flags & CO_VARKEYWORDS) != 0);
}

bool IsNextFrame(const FrameState& caller, const FrameState& callee) {
  return Layout311::Previous(callee.raw) == caller.raw;
}

bool IsHeldByOthers(const FrameState& f) {
  PyFrameObject* const object = Layout311::FrameObject(f.raw);
  return object != nullptr && Py_REFCNT(object) > 1;
}

CallSite CallSiteOf(const FrameState& f) {
  // Asked for each frame: what kind of call it is, is worked out once an opcode.
  enum class Calls : uint8_t { kNothing, kOnStack, kEx };
  static const std::array<Calls, 256> kCalls = [] {
    std::array<Calls, 256> calls{};
    for (size_t i = 0; i < calls.size(); ++i) {
      if (NameOf(kDecode[i]) == nullptr) continue;
      calls[i] = Is(kDecode[i], "CALL")               ? Calls::kOnStack
                 : Is(kDecode[i], "CALL_FUNCTION_EX") ? Calls::kEx
                                                      : Calls::kNothing;
    }
    return calls;
  }();
  const Instruction call = Whole(f.code, f.offset / 2);
  PyObject** stack = f.objects + f.nlocalsplus;
  switch (kCalls[static_cast<size_t>(&call.row - kDecode)]) {
    case Calls::kOnStack: {
      const int below = f.depth - call.arg - 2;
      return {stack[below] != nullptr ? stack[below] : stack[below + 1], below};
    }
    case Calls::kEx: {
      const int below = f.depth - 3 - (call.arg & 1);
      return {stack[below + 1], below};
    }
    case Calls::kNothing:
      break;
  }
  return {};
}

InstructionInfo InstructionAt(PyCodeObject* code, int offset) {
  // Called at every recorded instruction: the facts that follow from the name are computed once for each opcode.
  static const std::array<InstructionInfo, 256>* const kInfos = [] {
    auto* infos = new std::array<InstructionInfo, 256>();
    for (int i = 0; i < 256; ++i) {
      const Decoded& row = kDecode[i];
      InstructionInfo& info = (*infos)[static_cast<size_t>(i)];
      info.name = NameOf(row);
      if (info.name == nullptr) info.name = "";
      info.is_backward = Has(row, "JUMP_BACKWARD");
      info.is_branch = Has(row, "JUMP_FORWARD_IF") || Has(row, "JUMP_BACKWARD_IF") || Has(row, "JUMP_IF");
      info.is_return = Is(row, "RETURN_VALUE");
      info.role = RoleOf(info.name);
    }
    return infos;
  }();
  int acting = Acting(Units(code), offset / 2);
  InstructionInfo info = (*kInfos)[Units(code)[acting] & 0xff];
  info.next = (acting + 1 + At(code, acting).caches) * 2;
  return info;
}

int StartOffset(PyCodeObject* code) { return (code->_co_firsttraceable + 1) * 2; }

void AddTraceback(PyFunctionObject* function, int offset) {
  auto* code = reinterpret_cast<PyCodeObject*>(function->func_code);
  Ref<> made;
  {
    ErrScope keep;
    PyFrameObject* frame = PyFrame_New(PyThreadState_Get(), code, function->func_globals, nullptr);
    made = Ref<>::Steal(reinterpret_cast<PyObject*>(frame));
    if (!made) PyErr_Clear();
  }
  if (!made) return;
  auto* frame = reinterpret_cast<PyFrameObject*>(made.get());
  frame->f_frame->prev_instr = _PyCode_CODE(code) + Acting(Units(code), offset / 2);
  PyTraceBack_Here(frame);
}

const char* VersionProblem() {
  constexpr unsigned long kMinor = 0xFFFF0000;
  if ((Py_Version & kMinor) != (PY_VERSION_HEX & kMinor)) {
    return "frametap was built for Python 3.11 and cannot read the frames of this interpreter; build it again for this "
           "Python.";
  }
  return "";
}

bool GroupsOneException() { return Py_Version < 0x030B04F0; }

bool StoresAttribute(PyCodeObject* code, PyObject* name) {
  int wanted = -1;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(code->co_names); ++i) {
    if (PyTuple_GET_ITEM(code->co_names, i) == name) wanted = static_cast<int>(i);
  }
  if (wanted < 0) return false;
  for (int index = 0; index < UnitCount(code);) {
    const auto& [row, acting, arg, next] = Whole(code, index);
    if (arg == wanted && Is(row, "STORE_ATTR")) return true;
    index = next;
  }
  return false;
}

FlowNode FlowAt(PyCodeObject* code, int index) {
  FlowNode node;
  const auto& [row, acting, arg, next] = Whole(code, index);
  node.acting = acting;
  node.next = next;
  if (Is(row, "LOAD_FAST") || Is(row, "LOAD_CLOSURE")) {
    node.reads = arg;
  } else if (Is(row, "STORE_FAST")) {
    node.writes = arg;
  } else if (Is(row, "DELETE_FAST")) {
    node.reads = node.writes = arg;
  }
  bool back = Has(row, "JUMP_BACKWARD");
  bool jumps = back || Has(row, "JUMP_FORWARD") || Has(row, "JUMP_IF") || Is(row, "FOR_ITER") || Is(row, "SEND");
  if (jumps) node.target = back ? next - arg : next + arg;
  node.falls_through = !(Is(row, "RETURN_VALUE") || Is(row, "RAISE_VARARGS") || Is(row, "RERAISE") ||
                         Is(row, "JUMP_FORWARD") || Is(row, "JUMP_BACKWARD") || Is(row, "JUMP_BACKWARD_NO_INTERRUPT"));
  return node;
}

int FlowSize(PyCodeObject* code) { return UnitCount(code); }

}  // namespace frametap
