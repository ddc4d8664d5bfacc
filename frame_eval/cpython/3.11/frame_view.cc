#include "frame_eval/cpython/frame_view.h"

#include <array>
#include <cstring>
#include <memory>

#include "frame_eval/cpython/3.11/decode.h"
#include "frame_eval/cpython/3.11/raw_frame.h"
#include "frame_eval/cpython/eval_function.h"
#include "frame_eval/cpython/liveness.h"
#include "frame_eval/cpython/private_api.h"

namespace frametap {
namespace {

// Localsplus kinds of this version (they are not in an installed public header).
enum : unsigned char { kKindLocal = 0x20, kKindCell = 0x40, kKindFree = 0x80 };

const uint16_t* Units(PyCodeObject* code) { return _PyCode_CODE(code); }
int UnitCount(PyCodeObject* code) { return static_cast<int>(Py_SIZE(code)); }
const Decoded& At(PyCodeObject* code, int index) { return kDecode[Units(code)[index] & 0xff]; }

// The instruction that acts behind the prefixes that begin at `index`.
int Acting(PyCodeObject* code, int index) {
  while (At(code, index).prefix != Prefix::kNone) index += 1 + At(code, index).caches;
  return index;
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

const void* StackIdentity(PyThreadState* ts) {
  const _PyStackChunk* chunk = ts->datastack_chunk;
  while (chunk != nullptr && chunk->previous != nullptr) chunk = chunk->previous;
  return chunk;
}

FrameFacts FactsOf(_PyInterpreterFrame* raw) {
  bool generator = IsGeneratorFrame(raw);
  bool fresh = raw->prev_instr < Units(raw->f_code) || Is(kDecode[*raw->prev_instr & 0xff], "RETURN_GENERATOR");
  return {raw->f_code, generator, generator && !fresh};
}

bool IsUnfinished(PyObject* generator) {
  const auto state = reinterpret_cast<PyGenObject*>(generator)->gi_frame_state;
  return PyGen_CheckExact(generator) ? state == FRAME_SUSPENDED : state < FRAME_EXECUTING;
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

bool IsNextFrame(const FrameState& caller, const FrameState& callee) { return callee.raw->previous == caller.raw; }

CallSite CallSiteOf(const FrameState& f) {
  int at = f.offset / 2, arg = Units(f.code)[at] >> 8;
  for (; At(f.code, at).prefix != Prefix::kNone;) {
    const bool extends = At(f.code, at).prefix == Prefix::kExtendedArg;
    at += 1 + At(f.code, at).caches;
    const int low = Units(f.code)[at] >> 8;
    arg = extends ? arg << 8 | low : low;
  }
  PyObject** stack = f.objects + f.nlocalsplus;
  if (Is(At(f.code, at), "CALL")) {
    const int below = f.depth - arg - 2;
    return {stack[below] != nullptr ? stack[below] : stack[below + 1], below};
  }
  if (Is(At(f.code, at), "CALL_FUNCTION_EX")) {
    const int below = f.depth - 3 - (arg & 1);
    return {stack[below + 1], below};
  }
  return {};
}

InstructionInfo InstructionAt(PyCodeObject* code, int offset) {
  // Asked at every instruction that is recorded: what the name tells is worked out once an opcode.
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
    }
    return infos;
  }();
  int acting = Acting(code, offset / 2);
  InstructionInfo info = (*kInfos)[Units(code)[acting] & 0xff];
  info.next = (acting + 1 + At(code, acting).caches) * 2;
  return info;
}

int StartOffset(PyCodeObject* code) { return (code->_co_firsttraceable + 1) * 2; }

const char* VersionProblem() {
  constexpr unsigned long kMinor = 0xFFFF0000;
  if ((Py_Version & kMinor) != (PY_VERSION_HEX & kMinor)) {
    return "frametap was built for Python 3.11 and cannot read the frames of this interpreter; build it again for this "
           "Python.";
  }
  return "";
}

FlowNode FlowAt(PyCodeObject* code, int index) {
  FlowNode node;
  int arg = 0;
  int at = index;
  for (;; at += 1 + At(code, at).caches) {
    const Decoded& row = At(code, at);
    arg = arg << 8 | Units(code)[at] >> 8;
    if (row.prefix == Prefix::kNone) break;
    if (row.prefix != Prefix::kExtendedArg) arg = 0;
  }
  const Decoded& row = At(code, at);
  int next = at + 1 + row.caches;
  node.acting = at;
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
