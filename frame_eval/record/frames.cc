#include "frame_eval/record/frames.h"

#include <algorithm>
#include <vector>

#include "frame_eval/checks/self_checking.h"
#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/cpython/parameters.h"
#include "frame_eval/interpreter/opcodes/names.h"
#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/direct_calls.h"
#include "frame_eval/record/fast_paths/module_calls.h"
#include "frame_eval/record/fast_paths/repeated_calls.h"
#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/objects/force.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/objects/outside_containers.h"
#include "frame_eval/record/objects/own_dicts.h"
#include "frame_eval/record/objects/quiet.h"
#include "frame_eval/record/objects/set_check.h"
#include "frame_eval/record/objects/variables.h"
#include "frame_eval/record/recorder.h"
#include "frame_eval/record/semantics/calls.h"
#include "frame_eval/record/sites.h"
#include "frame_eval/record/trace/array_nodes.h"
#include "frame_eval/record/trace/checkpoint_nodes.h"
#include "frame_eval/record/trace/kernel_nodes.h"
#include "guards/objects/well_known_objects.h"
#include "ir/graph/eager_state.h"
#include "ir/segment/frame_slot.h"

namespace frametap {

static void FixDefaults(Trace& trace, PyFunctionObject* function);
static void BindPending(Trace& trace, FrameState& f);

bool Recorder::TakeResult(FrameState& f) {
  if (!trace_.frames.awaited.is_awaited) return true;
  trace_.frames.awaited.is_awaited = false;
  if (f.offset != trace_.frames.awaited.offset) return false;
  if (trace_.frames.awaited.object == nullptr) return f.depth == trace_.frames.awaited.depth;
  PyObject** place = f.objects + f.nlocalsplus + trace_.frames.awaited.depth;
  if (f.depth != trace_.frames.awaited.depth + 1 || *place != trace_.frames.awaited.object) return false;
  f.shadows[f.nlocalsplus + trace_.frames.awaited.depth] = trace_.frames.awaited.shadow;
  return true;
}

bool Recorder::expects_frame(const FrameState& f) const {
  if (trace_.frames.checkpoint && trace_.frames.checkpoint->caller == trace_.frames.inlined.back()) {
    return AwaitsCheckpointed(trace_, f.code) &&
           trace_.frames.pending.function == reinterpret_cast<PyObject*>(f.function);
  }
  // Callees of a frame that is not recorded are not recorded either.
  const FrameState* const caller = NoteOf(f).caller;
  if (caller != nullptr && NoteOf(*caller).suspended) return false;
  const FrameNote& note = NoteOf(trace_.frames.innermost());
  // C code hashes a tensor: which object it is has been read (identity.cc).
  const bool hashes = f.code == Objects().tensor_hash_code && !trace_.frames.has_pending;
  return note.op.in_event && !note.op.opaque_operation && !hashes && !IsFinaliser(trace_, f);
}

bool IsFinaliser(const Trace& trace, const FrameState& f) {
  const bool direct =
      trace.frames.has_pending && trace.frames.pending.function == reinterpret_cast<PyObject*>(f.function);
  PyObject* self = f.nlocalsplus > 0 ? f.objects[0] : nullptr;
  if (direct || self == nullptr) return false;
  if (f.code->co_argcount == 0) {  // *args
    if ((f.code->co_flags & CO_VARARGS) == 0 || !PyTuple_CheckExact(self) || PyTuple_GET_SIZE(self) == 0) return false;
    self = PyTuple_GET_ITEM(self, 0);
  }
  if (PyObject_TypeCheck(self, Objects().weak_reference)) return true;  // its callback
  PyTypeObject* const type = Py_TYPE(self);
  return (type->tp_finalize != nullptr || type->tp_del != nullptr) && HasPlainNames(type) &&
         _PyType_Lookup(type, interned.del) == reinterpret_cast<PyObject*>(f.function);
}

bool Recorder::observes_inner_frames() const { return trace_.lifetimes.watches() || SelfChecking(); }

// (Not inlined: few frames begin like this, and the code of the others takes fewer cache lines.)
[[gnu::noinline]] static void ResumeGenerator(Trace& trace, FrameState& f, FrameNote& note, const FrameState& caller) {
  auto it = trace.iteration.generators.find(f.raw);
  if (it == trace.iteration.generators.end()) throw Break{Reason::foreign_generator, ""};
  std::copy(it->second.shadows.begin(), it->second.shadows.end(), f.shadows);
  MarkMutated(trace, it->second.generator.get());
  note.rebuildable = NoteOf(caller).marked && IsDirectCall(caller, f);
}

// Adopts the context of an autograd.Function, and the objects that C code makes for `forward` or `setup_context`.
// (Not inlined, for the same reason.)
[[gnu::noinline]] static void AdoptArgumentsOfFunction(Trace& trace, FrameState& f) {
  for (int i = 0; i < f.nlocalsplus; ++i) {
    PyObject* const object = f.objects[i];
    if (object == nullptr || KindOfSlot(f.code, i) == SlotKind::kFree || PyCell_Check(object)) continue;
    const bool is_context = PyObject_TypeCheck(object, Objects().function_base);
    if (is_context && trace.objects.Find(object) == nullptr) AddFresh(trace, object, ObjectRecord::State::kOpaque);
    if (!is_context) TrackCreated(trace, object, true);
  }
}

// Adopts the arguments of a frame that C code calls.
static void AdoptArguments(Trace& trace, FrameState& f, FrameNote& caller) {
  const std::vector<Shadow> open(caller.op.for_new.begin(), caller.op.for_new.end());
  caller.op.for_new.clear();
  for (const Shadow shadow : open) Specialize(trace, nullptr, shadow);
  FixDefaults(trace, f.function);
  for (int i = 0; i < f.nlocalsplus; ++i) {
    if (f.objects[i] != nullptr && KindOfSlot(f.code, i) != SlotKind::kFree && !PyCell_Check(f.objects[i])) {
      AdoptResult(trace, f.objects[i]);
    }
  }
}

void Recorder::EnterInlined(FrameState& f, FrameNote& note) {
  note.Join();
  note.containers_before = trace_.objects.containers.size();
  f.traced = true;
  trace_.guards.ReadsNamesOf(f.code);
  const FrameState& caller = trace_.frames.innermost();
  if (trace_.frames.checkpoint && trace_.frames.checkpoint->caller == &caller) {
    trace_.frames.checkpoint->has_begun = true;
    trace_.frames.checkpoint->since = trace_.aten.mark();
    trace_.frames.checkpoint->state = CurrentEagerState();
    trace_.frames.checkpoint->state.autocast_cleared = trace_.aten.autocast_cleared;
  }
  note.to_cross = IsModuleCall(f.code);
  f.observed = note.to_cross || observes_inner_frames();
  trace_.frames.inlined.push_back(&f);
  if (f.is_generator) return ResumeGenerator(trace_, f, note, caller);
  FixCode(trace_, reinterpret_cast<PyObject*>(f.function));
  if (trace_.frames.has_pending && trace_.frames.pending.function == reinterpret_cast<PyObject*>(f.function)) {
    note.direct = true;
    BindPending(trace_, f);
    // `self` of a new instance has not been seen before: None stands for it in the call.
    const bool has_first = f.nlocalsplus > 0 && f.objects[0] != nullptr && !PyCell_Check(f.objects[0]);
    const bool is_made = has_first && !trace_.frames.pending.args.empty() && trace_.frames.pending.args[0] == Py_None;
    if (has_first) is_made ? TrackCreated(trace_, f.objects[0]) : AdoptResult(trace_, f.objects[0]);
  } else if (note.is_kernel) {
    EnterKernel(trace_, f, NoteOf(caller));
  } else if (NoteOf(caller).op.marks.calls_function) {
    AdoptArgumentsOfFunction(trace_, f);
  } else {
    AdoptArguments(trace_, f, NoteOf(caller));
  }
  trace_.frames.ClearPending();
  if (f.code == Objects().module_call_code && f.objects[0] != nullptr) {
    note.module = Places::Module{SourceOf(trace_, f.objects[0]), ClassName(trace_, Py_TYPE(f.objects[0]))};
  }
  // (A method that was bound for it calls it directly.)
  note.rebuildable = NoteOf(caller).marked && ((note.direct && NoteOf(caller).passes_on) || IsDirectCall(caller, f));
}

// The code that the function runs. A class determines the function (a method, a property, a slot), and not a later
// assignment to its code. An open one (IsOpen) is known by its code alone.
void FixCode(Trace& trace, PyObject* function) {
  if (trace.objects.Find(function) == nullptr) {
    PyObject*& recent =
        trace.objects.fixed_code[(reinterpret_cast<uintptr_t>(function) >> 4) % trace.objects.fixed_code.size()];
    if (recent != function && !trace.guards.IsPinned(function)) trace.guards.Pinned(function, CallableName(function));
    recent = function;
  } else if (IsOpen(trace, function))
    trace.guards.Add(GuardKind::kCode, SourceOf(trace, function), trace.frames.Here());
}

// C code calls a function that the trace has made. Which of its arguments are defaults is not reported.
static void FixDefaults(Trace& trace, PyFunctionObject* function) {
  PyObject* const defaults = function->func_defaults;
  const ObjectRecord* const known = defaults != nullptr ? trace.objects.Find(defaults) : nullptr;
  const bool is_made = known != nullptr && known->state != ObjectRecord::State::kSource;
  for (size_t i = 0; is_made && i < known->items.size(); ++i) {
    Specialize(trace, PyTuple_GET_ITEM(defaults, static_cast<Py_ssize_t>(i)), known->items[i]);
  }
  if (function->func_kwdefaults != nullptr) FixValues(trace, function->func_kwdefaults);
}

static void BindPending(Trace& trace, FrameState& f) {
  PyCodeObject* code = f.code;
  const Parameters parameters(code);
  const int argcount = parameters.positional;
  const size_t positional = trace.frames.pending.args.size() - trace.frames.pending.names.size();
  absl::InlinedVector<bool, 16> given(static_cast<size_t>(parameters.named));
  for (size_t i = 0; i < positional && i < static_cast<size_t>(argcount); ++i) {
    f.shadows[i] = trace.frames.pending.shadows[i];
    given[i] = true;
  }
  PyObject* const varargs = parameters.varargs >= 0 ? f.objects[parameters.varargs] : nullptr;
  if (varargs != nullptr && !IsConstantTuple(trace, varargs)) {
    ObjectRecord& known = AddFresh(trace, varargs);
    for (size_t i = static_cast<size_t>(argcount); i < positional; ++i)
      known.items.push_back(trace.frames.pending.shadows[i]);
  }
  PyObject* const kwargs = parameters.kwargs >= 0 ? f.objects[parameters.kwargs] : nullptr;
  if (kwargs != nullptr) AddFresh(trace, kwargs);
  for (size_t k = 0; k < trace.frames.pending.names.size(); ++k) {
    PyObject* name = trace.frames.pending.names[k];
    Shadow shadow = trace.frames.pending.shadows[positional + k];
    if (const int slot = parameters.SlotOf(name); slot >= 0) {
      f.shadows[slot] = shadow;
      given[static_cast<size_t>(slot)] = true;
      continue;
    }
    PyObject* const value = trace.frames.pending.args[positional + k];
    if (kwargs != nullptr && LeavesOpen(trace, value, shadow)) {
      KeepValue(trace, kwargs, name, shadow);
    } else {
      Specialize(trace, value, shadow);
    }
  }
  // Defaults: fixed with the function, but a mutable one is an object that lives on. Those of a function that the trace
  // has made are what it was given.
  const bool is_fixed = IsFixedFunction(trace, f);
  const ObjectRecord* own = trace.objects.Find(reinterpret_cast<PyObject*>(f.function));
  const bool is_made = own != nullptr && own->state != ObjectRecord::State::kSource;
  for (int i = 0; i < parameters.named; ++i) {
    if (given[static_cast<size_t>(i)] || f.objects[i] == nullptr) continue;
    PyObject* value = f.objects[i];
    if (PyCell_Check(value)) continue;
    if (is_made) {
      PyObject* holder = i < argcount ? f.function->func_defaults : f.function->func_kwdefaults;
      AdoptElements(trace, holder);  // it may have existed before the recording, which began between the two
      if (i < argcount) {
        f.shadows[i] = ElementShadow(trace, holder, i - argcount + PyTuple_GET_SIZE(holder));
      } else if (const Shadow* const open = StoredItem(trace, holder, SlotName(code, i)); open != nullptr) {
        f.shadows[i] = *open;
      }
      AdoptResult(trace, value);
      continue;
    }
    if (i >= argcount) {
      // Keyword-only defaults live in a dict that may change.
      RefuseMutatedDict(trace, f.function->func_kwdefaults);
      SourceId source = trace.guards.Child(SourceOrPin(trace, reinterpret_cast<PyObject*>(f.function)),
                                           Accessor::kKwDefault, 0, SlotName(code, i), value);
      f.shadows[i] = FromSource(trace, source, value, is_fixed);
      continue;
    }
    if (!is_fixed) {
      const Py_ssize_t index = i - argcount + PyTuple_GET_SIZE(f.function->func_defaults);
      const SourceId function = SourceOf(trace, reinterpret_cast<PyObject*>(f.function));
      f.shadows[i] =
          FromSource(trace, trace.guards.Child(function, Accessor::kDefault, index, nullptr, value), value, false);
      continue;
    }
    if (IsScalar(value)) continue;
    AdoptPinned(trace, value, std::string("default ") + PyUnicode_AsUTF8(SlotName(code, i)));
  }
}

// Returns whether C code gets what a frame hands over, and may read all that is in it: it compares keys, joins rows, asks
// for their truth. Operators, attributes, instances of classes, `next` and the like hand it on to bytecode as it is.
static bool GoesToC(const FrameState& caller, const FrameState& f) {
  if (PyObject* const callable = CallSiteOf(caller).callable; callable != nullptr) {
    const bool is_type =
        PyType_Check(callable) && !PyType_HasFeature(reinterpret_cast<PyTypeObject*>(callable), Py_TPFLAGS_HEAPTYPE);
    if (!is_type && !PyCFunction_Check(callable) && Py_TYPE(callable) != &PyMethodDescr_Type) return false;
    static constexpr std::string_view kHandOn[] = {"next", "getattr", "send", "__getattribute__", "__call__"};
    const CallableRow* const row = FindCallable(callable);
    return row == nullptr || std::find(std::begin(kHandOn), std::end(kHandOn), row->name) == std::end(kHandOn);
  }
  if (PyObject* const taken = TakeSiteOf(caller).iterator; taken != nullptr) {
    return !f.is_generator || !PyGen_CheckExact(taken) || FrameOfGenerator(taken) != f.raw;
  }
  return InstructionAt(caller.code, caller.offset).role == InstructionRole::kTakesElements;
}

void Recorder::LeaveInlined(FrameState& f, FrameNote& note, FrameEnd end, PyObject* value, Shadow shadow) {
  trace_.frames.inlined.pop_back();
  note.inlined = false;
  FrameNote& caller = *static_cast<FrameNote*>(trace_.frames.innermost().tracer_data);
  const auto hand_over = [&] {
    const bool has_content = PyTuple_Check(value) || PyList_Check(value) || PyDict_Check(value) || IsAnySet(value) ||
                             trace_.iteration.open.contains(value);
    if (has_content && GoesToC(trace_.frames.innermost(), f)) return SpecializeDeep(trace_, value, shadow, true);
    Specialize(trace_, value, shadow);
  };
  if (end == FrameEnd::kGenerator) {
    // The frame moves into the generator object: that is how it is found when it is resumed.
    trace_.iteration.generators[FrameOfGenerator(value)] = {
        Ref<>::New(value), std::vector<Shadow>(f.shadows, f.shadows + f.nlocalsplus),
        Ref<>::New(reinterpret_cast<PyObject*>(f.function)), false, 0};
    AddFresh(trace_, value, ObjectRecord::State::kOpaque);
    caller.op.returned = value;
    caller.op.returned_shadow = Shadow();
    return;
  }
  if (end == FrameEnd::kYielded) {
    auto it = trace_.iteration.generators.find(f.raw);
    if (it != trace_.iteration.generators.end()) {
      // Locals, and the value stack below the value that was handed out: in its place comes what is sent in.
      it->second.shadows.assign(f.shadows, f.shadows + f.nlocalsplus + f.depth - 1);
    }
    caller.op.returned = value;
    caller.op.returned_shadow = Shadow();
    bool is_open = false;
    if (caller.op.collects != nullptr && FrameOfGenerator(caller.op.collects) == f.raw) {
      caller.op.expect.items.push_back(KeepOpen(trace_, value, shadow, &is_open));
      if (is_open) caller.op.expect.kind = ResultSpec::Kind::kItems;
    } else if (IsDirectCall(trace_.frames.innermost(), f)) {
      caller.op.returned_shadow = KeepOpen(trace_, value, shadow, &is_open);
    } else {
      hand_over();
    }
    return;
  }
  if (end == FrameEnd::kReturned && value != nullptr) {
    if (!note.direct) {
      hand_over();
      shadow = Shadow();
    }
    caller.op.returned = value;
    caller.op.returned_shadow = shadow;
  }
}

void Recorder::Raised(FrameState& f, FrameNote& note, const Event& e) {
  if (note.op.marks.hides_ops) aten::SeeEveryOp(true);
  if (trace_.repeated_calls) trace_.repeated_calls->Forget();
  if (trace_.frames.checkpoint && trace_.frames.checkpoint->caller == &f) {
    trace_.frames.checkpoint.reset();
    if (!trace_.aten.pending) trace_.aten.pending = Break{Reason::exception_from_op, ""};
  }
  const bool is_of_numpy = std::exchange(note.op.arrays, nullptr) != nullptr;
  if (trace_.aten.pending) return;
  if (note.op.expect.kind == ResultSpec::Kind::kTorch || is_of_numpy) {
    trace_.aten.pending = Break{Reason::exception_from_op, ""};
  } else if (ReadsVariable(e.op)) {
    // No guard can be on the value of a variable without one.
    trace_.aten.pending = Break{Reason::unknown_operation, "a variable without a value"};
  } else if (e.op == Op::kRaise && e.n > 0 && PyExceptionInstance_Check(e.in[0]) && SourceOf(trace_, e.in[0]).valid()) {
    // A handler leaves it with another traceback and context.
    trace_.aten.pending = Break{Reason::unknown_mutation, "an exception that existed before is raised"};
  } else if (note.op.own_effect || e.op == Op::kStoreAttr || e.op == Op::kDeleteAttr || e.op == Op::kStoreSubscr ||
             e.op == Op::kDeleteSubscr) {
    // Before has taken the change for done; it was not, or only in part.
    trace_.aten.pending = Break{Reason::unknown_mutation, "it raised an exception"};
  }
}

}  // namespace frametap
