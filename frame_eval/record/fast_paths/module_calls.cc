#include "frame_eval/record/fast_paths/module_calls.h"

#include <torch/csrc/jit/frontend/tracer.h>

#include <algorithm>
#include <utility>

#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/fast_paths/module_call_code.h"
#include "frame_eval/record/objects/force.h"
#include "frame_eval/record/objects/identity.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/objects/quiet.h"
#include "frame_eval/record/objects/variables.h"
#include "frame_eval/record/semantics/attributes.h"
#include "frame_eval/record/semantics/calls.h"
#include "frame_eval/record/semantics/containers.h"
#include "guards/kinds/no_hooks.h"
#include "guards/objects/import.h"
#include "guards/objects/well_known_objects.h"
#include "guards/throw_if_null.h"

namespace frametap {
namespace {

using namespace module_call;

constexpr int kHooks = 4;
constexpr const char* kGlobalHookNames[kHooks] = {"_global_backward_pre_hooks", "_global_backward_hooks",
                                                  "_global_forward_hooks", "_global_forward_pre_hooks"};

struct Ways {
  // Null where the code differs from module_call_code.h.
  PyCodeObject* wrapped = nullptr;
  PyCodeObject* call = nullptr;
  int forward_call = 0;                 // slot of the variable
  std::array<int, kCellCount> cells{};  // slots, in the order of their instructions
  // Names, interned.
  PyObject* compiled_call_impl = nullptr;
  PyObject* call_impl = nullptr;
  PyObject* forward = nullptr;
  PyObject* torch = nullptr;
  PyObject* c = nullptr;
  PyObject* get_tracing_state = nullptr;
  PyObject* global_hooks[kHooks] = {};
};

Ways ways;
bool is_on = true;

// FNV-1a of the instructions, the names they use, and the names of the variables. 0 with a Python exception.
uint64_t DigestOf(PyCodeObject* code) {
  const Ref<> bytes = Ref<>::Steal(PyCode_GetCode(code));
  if (!bytes) return 0;
  uint64_t digest = 0xcbf29ce484222325;
  const auto add = [&digest](const char* text, Py_ssize_t size) {
    for (Py_ssize_t i = 0; i < size; ++i) digest = (digest ^ static_cast<unsigned char>(text[i])) * 0x100000001b3;
  };
  add(PyBytes_AS_STRING(bytes.get()), PyBytes_GET_SIZE(bytes.get()));
  const auto add_name = [&add](PyObject* name) {
    Py_ssize_t size = 0;
    const char* const text = PyUnicode_AsUTF8AndSize(name, &size);
    if (text != nullptr) add(text, size + 1);
    return text != nullptr;
  };
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(code->co_names); ++i) {
    if (!add_name(PyTuple_GET_ITEM(code->co_names, i))) return 0;
  }
  for (int i = 0; i < code->co_nlocalsplus; ++i) {
    if (!add_name(SlotName(code, i))) return 0;
  }
  return digest;
}

// The code, held for ever; null if it is another one than was crossed when module_calls.cc was written.
PyCodeObject* KnownCode(PyCodeObject* code, uint64_t digest) {
  return DigestOf(code) == digest ? reinterpret_cast<PyCodeObject*>(Py_NewRef(code)) : nullptr;
}

int SlotOf(PyCodeObject* code, const char* variable) {
  int slot = 0;
  while (PyUnicode_CompareWithASCIIString(SlotName(code, slot), variable) != 0) ++slot;
  return slot;
}

// Whether the hooks that nn.Module.__call__ asks for are those in the dict of the module: not what a __getattribute__ or
// a descriptor says.
bool ReadsHooksOfInstance(PyTypeObject* type) {
  const auto& hooks = NoHooksGuard::names().hooks;
  return PyType_IsSubtype(type, Objects().module) && HasGenericGet(type) &&
         std::all_of(hooks.begin(), hooks.end(),
                     [&](const Key& name) { return _PyType_Lookup(type, name.object.get()) == nullptr; });
}

}  // namespace

std::optional<std::array<PyObject*, 4>> NoHooksOf(PyObject* object) {
  if (!ReadsHooksOfInstance(Py_TYPE(object))) return std::nullopt;
  return NoHooksGuard::HooksOf(object);
}

bool LoadModuleCalls() {
  const PyTypeObject* module = Objects().module;
  PyObject* wrapped = ItemOrError(module->tp_dict, "_wrapped_call_impl");
  if (wrapped == nullptr || !PyFunction_Check(wrapped) || Objects().module_call_code == nullptr) {
    return PyErr_Occurred() == nullptr;
  }
  ways.wrapped = KnownCode(reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(wrapped)), kWrappedDigest);
  ways.call = KnownCode(Objects().module_call_code, kCallDigest);
  if (PyErr_Occurred() != nullptr) return false;
  if (ways.call != nullptr) {
    ways.forward_call = SlotOf(ways.call, "forward_call");
    const Ref<> bytes = Ref<>::Steal(PyCode_GetCode(ways.call));
    if (!bytes) return false;
    // It begins with one MAKE_CELL each.
    for (int i = 0; i < kCellCount; ++i) {
      ways.cells[static_cast<size_t>(i)] = static_cast<unsigned char>(PyBytes_AS_STRING(bytes.get())[2 * i + 1]);
    }
  }
  ways.compiled_call_impl = InternedName("_compiled_call_impl");
  ways.call_impl = InternedName("_call_impl");
  ways.forward = InternedName("forward");
  ways.torch = InternedName("torch");
  ways.c = InternedName("_C");
  ways.get_tracing_state = InternedName("_get_tracing_state");
  for (int i = 0; i < kHooks; ++i) ways.global_hooks[i] = InternedName(kGlobalHookNames[i]);
  return true;
}

bool KnowsModuleCalls() { return ways.wrapped != nullptr && ways.call != nullptr; }

bool CrossModuleCalls(bool on) { return std::exchange(is_on, on) && KnowsModuleCalls(); }

bool IsModuleCall(PyCodeObject* code) { return code != nullptr && (code == ways.wrapped || code == ways.call); }

// One frame on its way. Where a step finds something unusual, the way ends: the frame is as it was.
class Crossing {
 public:
  Crossing(Trace& trace, FrameState& f, FrameNote& note) : trace_(trace), f_(f), note_(note), start_(f.offset) {}
  ~Crossing() {
    if (!arrived_) f_.offset = start_;
    trace_.frames.ClearPending();
  }

  bool ThroughWrapped() {
    trace_.module_calls.without_hooks = nullptr;
    for (int i = 0; i < 3; ++i) {
      if (f_.objects[i] == nullptr || f_.shadows[i].kind != Shadow::Kind::kNone) return false;
    }
    self_ = f_.objects[0];
    if (!IsUsual(f_.objects[1], f_.objects[2])) return false;
    if (_PyType_Lookup(Py_TYPE(self_), ways.compiled_call_impl) != Py_None) return false;
    At(kReadCompiled);
    const bool is_told = HasNoHooks();
    if (!is_on) return false;
    if (!is_told) {
      LoadAttribute(trace_, note_, self_, Shadow(), ways.compiled_call_impl);
      if (note_.op.expect.kind != ResultSpec::Kind::kAny) return false;
    }
    const Ref<> call_impl = Method(kReadCallImpl, ways.call_impl, is_told);
    if (!call_impl) return false;
    PassOn(kMergeWrapped, kPassOnWrapped, call_impl.get(), f_.objects[1], f_.objects[2]);
    if (is_told) trace_.module_calls.without_hooks = self_;
    return true;
  }

  bool ThroughCall() {
    const bool was_passed_on = note_.caller != nullptr && note_.caller->code == ways.wrapped;
    PyObject* const was_told = was_passed_on ? trace_.module_calls.without_hooks : nullptr;  // nothing has run since
    PyObject* contents[3];
    for (int i = 0; i < 3; ++i) {
      if (!IsOwnCell(i) || (contents[i] = PyCell_GET(f_.objects[i])) == nullptr) return false;
      if (trace_.variables.cells[f_.shadows[i].id].kind != Shadow::Kind::kNone) return false;
    }
    self_ = contents[0];
    if (!IsOwnCell(ways.forward_call) || !IsUsual(contents[1], contents[2], was_told == self_)) return false;
    At(kReadForward);
    const bool is_told = was_told == self_ || HasNoHooks();
    if (!is_on) return false;
    const bool is_met = HasMetGlobals();
    if (!is_met && IsTracing()) return false;
    const Ref<> forward = Method(kReadForward, ways.forward, is_told);
    if (!forward) return false;
    for (int i = 0; i < kHooks && !is_told; ++i) {
      Shadow shadow;
      PyObject* hooks = OwnAttribute(kReadHooks[i], NoHooksGuard::names().hooks[i].object.get(), &shadow);
      if (!IsNothing(kAskHooks[i], hooks, shadow)) return false;
    }
    for (int i = 0; i < kHooks && !is_met; ++i) {
      Shadow shadow;
      PyObject* hooks = Global(kReadGlobalHooks[i], ways.global_hooks[i], &shadow);
      if (!IsNothing(kAskGlobalHooks[i], hooks, shadow)) return false;
      trace_.module_calls.hooks[static_cast<size_t>(i)] = hooks;
    }
    trace_.module_calls.globals = f_.function->func_globals;
    PassOn(kMergeCall, kPassOnCall, forward.get(), contents[1], contents[2]);
    trace_.variables.cells[f_.shadows[ways.forward_call].id] = Shadow();
    PyCell_Set(f_.objects[ways.forward_call], forward.get());
    return true;
  }

 private:
  void At(int offset) {
    f_.offset = offset;
    note_.op.expect.Reset();
  }

  bool IsOwnCell(int slot) const {
    return f_.objects[slot] != nullptr && PyCell_Check(f_.objects[slot]) &&
           f_.shadows[slot].kind == Shadow::Kind::kCell;
  }

  // `is_told`: that the instance has no hooks, and what this rests on.
  bool IsUsual(PyObject* args, PyObject* kwargs, bool is_told = false) const {
    if (f_.depth != 0 || !PyTuple_CheckExact(args) || !PyDict_CheckExact(kwargs)) return false;
    if (is_told) return true;
    const ObjectRecord* known = trace_.objects.Find(self_);
    return known != nullptr && known->state == ObjectRecord::State::kSource && ReadsHooksOfInstance(Py_TYPE(self_)) &&
           DictAt(DictOf::kInstance, self_) != nullptr;
  }

  // Borrowed; null if it is not simply read from where it is.
  PyObject* Attribute(int offset, PyObject* owner, PyObject* name, Shadow* shadow) {
    At(offset);
    LoadAttribute(trace_, note_, owner, Shadow(), name);
    PyObject* value = note_.op.expect.answer;
    if (note_.op.expect.kind != ResultSpec::Kind::kSource || value == nullptr) return nullptr;
    *shadow = FromSource(trace_, note_.op.expect.source, value, note_.op.expect.pinned);
    return value;
  }

  // The attributes of the module itself, as LoadAttribute reports them once it has found all else to be usual.
  PyObject* OwnAttribute(int offset, PyObject* name, Shadow* shadow) {
    PyObject* value = ItemQuietly(DictAt(DictOf::kInstance, self_), name);
    if (value == nullptr || WrittenShadow(trace_, self_, name) != nullptr) return nullptr;
    At(offset);
    const ObjectRecord& known = *trace_.objects.Find(self_);
    *shadow =
        FromSource(trace_, trace_.guards.Child(known.source, Accessor::kAttr, 0, name, value), value, known.pinned);
    return value;
  }

  PyObject* Global(int offset, PyObject* name, Shadow* shadow) {
    At(offset);
    return ReadGlobal(trace_, f_, note_, name, shadow);
  }

  // All reads of the instance by both functions, in one guard. Returns false if each part must be recorded by itself.
  // This is so after a change to an OrderedDict that existed before: it may be a dict of hooks, at another call if not
  // here.
  bool HasNoHooks() {
    const ObjectRecord& known = *trace_.objects.Find(self_);
    const auto& changed = trace_.objects.mutated_sources;
    if (known.written || std::any_of(changed.begin(), changed.end(), [](PyObject* o) { return PyODict_Check(o); })) {
      return false;
    }
    RefuseMutatedDict(trace_, *_PyObject_GetDictPtr(self_));
    RefuseSharedDict(trace_, self_, *_PyObject_GetDictPtr(self_));
    const auto hooks = NoHooksGuard::HooksOf(self_);
    if (!hooks) return false;
    for (PyObject* own : *hooks) {
      if (trace_.objects.knows_ordered_dicts && trace_.objects.Find(own) != nullptr) return false;
    }
    GuardTypeOrIdentity(trace_, self_);
    trace_.guards.Add(GuardKind::kNoHooks, known.source, trace_.frames.Here());
    return true;
  }

  // A method of the class, bound as the read would. `is_told`: the instance has nothing under the name.
  Ref<> Method(int offset, PyObject* name, bool is_told) {
    PyObject* function = _PyType_Lookup(Py_TYPE(self_), name);
    if (function == nullptr || !PyFunction_Check(function)) return Ref<>();
    At(offset);
    if (!is_told) LoadAttribute(trace_, note_, self_, Shadow(), name);
    if (!is_told && note_.op.expect.kind != ResultSpec::Kind::kAny) return Ref<>();
    Ref<> method = Must(PyMethod_New(function, self_));
    AddFresh(trace_, method.get());
    return method;
  }

  bool IsNothing(int offset, PyObject* hooks, Shadow shadow) {
    if (!IsEmptyDict(hooks)) return false;
    At(offset);
    TruthOf(trace_, note_, hooks, shadow);
    return true;
  }

  // The facts that all calls of modules read (tracing by jit, the hooks of all modules) were read by an earlier one.
  // Another look would add no guard, as long as the trace has changed nothing.
  bool HasMetGlobals() const {
    const auto& met = trace_.module_calls;
    if (met.globals != f_.function->func_globals || !trace_.effects.pending.empty() ||
        !trace_.objects.mutated_sources.empty())
      return false;
    return std::all_of(met.hooks.begin(), met.hooks.end(), IsEmptyDict) && !torch::jit::tracer::isTracing();
  }

  // torch._C._get_tracing_state()
  bool IsTracing() {
    Shadow shadow;
    PyObject* torch = Global(kReadTorch, ways.torch, &shadow);
    if (torch == nullptr || !PyModule_CheckExact(torch)) return true;
    PyObject* c = Attribute(kReadC, torch, ways.c, &shadow);
    if (c == nullptr || !PyModule_CheckExact(c)) return true;
    PyObject* get = Attribute(kReadGetTracingState, c, ways.get_tracing_state, &shadow);
    if (get == nullptr || !PyCFunction_CheckExact(get)) return true;
    At(kGetTracingState);
    Invoke(trace_, Call{f_, note_, get, {}, {}, {}});
    return torch::jit::tracer::isTracing();
  }

  // To the call `callable(*args, **kwargs)`, its operands on the stack. The dict of keywords is a copy.
  void PassOn(int merge, int call, PyObject* callable, PyObject* args, PyObject* kwargs) {
    At(merge);
    Ref<> passed = Must(PyDict_Copy(kwargs));
    AddFresh(trace_, passed.get());
    if (PyDict_GET_SIZE(kwargs) > 0) {
      SpecializeDeep(trace_, kwargs, Shadow(), true);
      ReadElements(trace_, {passed.get(), kwargs});
      MarkMutated(trace_, passed.get());
    }
    PyObject* const operands[] = {nullptr, callable, args, passed.get()};
    for (PyObject* operand : operands) {
      f_.objects[f_.nlocalsplus + f_.depth] = Py_XNewRef(operand);
      f_.shadows[f_.nlocalsplus + f_.depth] = Shadow();
      ++f_.depth;
    }
    At(call);
    note_.passes_on = arrived_ = true;
  }

  Trace& trace_;
  FrameState& f_;
  FrameNote& note_;
  const int start_;
  PyObject* self_ = nullptr;
  bool arrived_ = false;
};

// If there is no memory for a cell, the interpreter has the same failure at that instruction.
bool MakeCells(Trace& trace, FrameState& f) {
  if (!is_on || f.code != ways.call || f.offset != 0) return false;
  for (int i = 0; i < kCellCount; ++i) {
    const int slot = ways.cells[static_cast<size_t>(i)];
    PyObject* cell = PyCell_New(f.objects[slot]);
    if (cell == nullptr) {
      PyErr_Clear();
      break;
    }
    trace.variables.cells.push_back(f.shadows[slot]);
    Py_XSETREF(f.objects[slot], cell);
    f.shadows[slot] = {Shadow::Kind::kCell, static_cast<uint32_t>(trace.variables.cells.size() - 1)};
    f.offset = 2 * (i + 1);
  }
  return f.offset != 0;
}

// The method, and what holds its arguments, are the trace's own: the crossing has bound the one, the frame got the other.
bool PassOn(Trace& trace, const Event& e) {
  PyObject* const method = e.in[0];
  PyObject* const function = PyMethod_GET_FUNCTION(method);
  if (const CallableRow* row = FindCallable(function); row != nullptr && row->special != nullptr) return false;
  PendingCall& pending = ExpectFrame(trace, function);
  pending.args.assign(1, PyMethod_GET_SELF(method));
  pending.shadows.assign(1, Shadow());
  pending.names.clear();
  AddSpread(trace, e, &pending);
  return true;
}

bool CrossModuleCall(Trace& trace, FrameState& f, FrameNote& note) {
  if (f.code == ways.wrapped) return Crossing(trace, f, note).ThroughWrapped();
  return Crossing(trace, f, note).ThroughCall();
}

PyCodeObject*& OwnExecutable() {
  static PyCodeObject* code = nullptr;
  return code;
}

}  // namespace frametap
