// The frames of a recording: which frames belong to it, how their arguments are bound, and how they are left.
#include <algorithm>
#include <cstring>

#include "frame_eval/checks/self_checking.h"
#include "frame_eval/cpython/exception_table.h"
#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/cpython/liveness.h"
#include "frame_eval/record/break_words.h"
#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/callers.h"
#include "frame_eval/record/fast_paths/module_calls.h"
#include "frame_eval/record/fast_paths/repeated_calls.h"
#include "frame_eval/record/objects/module_paths.h"
#include "frame_eval/record/objects/quiet.h"
#include "frame_eval/record/recorder.h"
#include "frame_eval/record/trace/array_nodes.h"
#include "guards/must.h"
#include "guards/objects/known_objects.h"
#include "guards/objects/tensor_door.h"
#include "ir/graph/eager_state.h"
#include "ir/segment/frame_slot.h"

namespace frametap {

bool Recorder::TakeResult(FrameState& f) {
  if (!awaited_.is_awaited) return true;
  awaited_.is_awaited = false;
  if (f.offset != awaited_.offset) return false;
  if (awaited_.object == nullptr) return f.depth == awaited_.depth;
  PyObject** place = f.objects + f.nlocalsplus + awaited_.depth;
  if (f.depth != awaited_.depth + 1 || *place != awaited_.object) return false;
  f.shadows[f.nlocalsplus + awaited_.depth] = awaited_.shadow;
  return true;
}

bool Recorder::expects_frame(const FrameState& f) const {
  if (checkpoint_ && checkpoint_->caller == frames_.back()) {
    return AwaitsCheckpointed(f.code) && pending_.function == reinterpret_cast<PyObject*>(f.function);
  }
  // Callees of a frame that is not recorded are not recorded either.
  const FrameState* const caller = NoteOf(f).caller;
  if (caller != nullptr && NoteOf(*caller).suspended) return false;
  const FrameNote& note = NoteOf(*frames_.back());
  // C code hashes a tensor: which object it is has been read (identity.cc).
  const bool hashes = f.code == Objects().tensor_hash_code && !has_pending_;
  return note.in_event && !note.opaque_operation && !hashes && !IsFinaliser(f);
}

bool Recorder::IsFinaliser(const FrameState& f) const {
  const bool direct = has_pending_ && pending_.function == reinterpret_cast<PyObject*>(f.function);
  PyObject* self = f.nlocalsplus > 0 ? f.objects[0] : nullptr;
  if (direct || self == nullptr) return false;
  if (f.code->co_argcount == 0) {  // *args
    if ((f.code->co_flags & CO_VARARGS) == 0 || !PyTuple_CheckExact(self) || PyTuple_GET_SIZE(self) == 0) return false;
    self = PyTuple_GET_ITEM(self, 0);
  }
  if (PyObject_TypeCheck(self, Objects().weak_reference)) return true;  // its callback
  PyTypeObject* const type = Py_TYPE(self);
  static PyObject* const name = InternedName("__del__");
  return (type->tp_finalize != nullptr || type->tp_del != nullptr) && HasPlainNames(type) &&
         _PyType_Lookup(type, name) == reinterpret_cast<PyObject*>(f.function);
}

bool Recorder::observes_inner_frames() const { return watches_ends() || SelfChecking(); }

void Recorder::EnterInlined(FrameState& f, FrameNote& note) {
  note.Join();
  note.containers_before = containers_.size();
  f.traced = true;
  guards_.ReadsNamesOf(f.code);
  const FrameState& caller = *frames_.back();
  if (checkpoint_ && checkpoint_->caller == &caller) {
    checkpoint_->has_begun = true;
    checkpoint_->since = aten_.mark();
    checkpoint_->state = CurrentEagerState();
    checkpoint_->state.autocast_cleared = aten_.autocast_cleared();
  }
  note.to_cross = IsModuleCall(f.code);
  f.observed = note.to_cross || observes_inner_frames();
  if (f.is_generator) {
    auto it = generators_.find(f.raw);
    if (it == generators_.end()) {
      frames_.push_back(&f);
      throw Break{Reason::foreign_generator, ""};
    }
    frames_.push_back(&f);
    std::copy(it->second.shadows.begin(), it->second.shadows.end(), f.shadows);
    MarkMutated(it->second.generator.get());
    note.rebuildable = NoteOf(caller).marked && CallsStraight(caller, f);
    return;
  }
  frames_.push_back(&f);
  FixCode(reinterpret_cast<PyObject*>(f.function));
  if (has_pending_ && pending_.function == reinterpret_cast<PyObject*>(f.function)) {
    note.direct = true;
    BindPending(f);
    // `self` of a new instance has not been seen before: None stands for it in the call.
    const bool has_first = f.nlocalsplus > 0 && f.objects[0] != nullptr && !PyCell_Check(f.objects[0]);
    const bool is_made = has_first && !pending_.args.empty() && pending_.args[0] == Py_None;
    if (has_first) is_made ? AdoptMade(f.objects[0]) : AdoptResult(f.objects[0]);
  } else if (note.is_kernel) {
    EnterKernel(f, NoteOf(caller));
  } else if (NoteOf(caller).marks.calls_function) {
    // The context, and what C code has put together for `forward` or `setup_context`.
    for (int i = 0; i < f.nlocalsplus; ++i) {
      PyObject* const object = f.objects[i];
      if (object == nullptr || KindOfSlot(f.code, i) == SlotKind::kFree || PyCell_Check(object)) continue;
      const bool is_context = PyObject_TypeCheck(object, Objects().function_base);
      if (is_context && Find(object) == nullptr) AddFresh(object, Known::State::kOpaque);
      if (!is_context) AdoptMade(object, true);
    }
  } else {
    auto& for_new = NoteOf(caller).for_new;
    const std::vector<Shadow> open(for_new.begin(), for_new.end());
    for_new.clear();
    for (const Shadow shadow : open) Force(nullptr, shadow);
    FixDefaults(f.function);
    for (int i = 0; i < f.nlocalsplus; ++i) {
      if (f.objects[i] != nullptr && KindOfSlot(f.code, i) != SlotKind::kFree && !PyCell_Check(f.objects[i])) {
        AdoptResult(f.objects[i]);
      }
    }
  }
  has_pending_ = false;
  if (f.code == Objects().module_call_code && f.objects[0] != nullptr) {
    note.module = Places::Module{SourceOf(f.objects[0]), ClassName(Py_TYPE(f.objects[0]))};
  }
  // (A method that was bound for it calls it straight.)
  note.rebuildable = NoteOf(caller).marked && ((note.direct && NoteOf(caller).passes_on) || CallsStraight(caller, f));
}

// The code that the function runs. A class determines the function (a method, a property, a slot), and not a later
// assignment to its code. An open one (IsOpen) is known by its code alone.
void Recorder::FixCode(PyObject* function) {
  if (Find(function) == nullptr) {
    PyObject*& recent = fixed_code_[(reinterpret_cast<uintptr_t>(function) >> 4) % fixed_code_.size()];
    if (recent != function && !guards_.IsPinned(function)) guards_.Pinned(function, CallableName(function));
    recent = function;
  } else if (IsOpen(function))
    guards_.Code(SourceOf(function), Here());
}

// C code calls a function that the trace has made. Which of its arguments are defaults is not reported.
void Recorder::FixDefaults(PyFunctionObject* function) {
  PyObject* const defaults = function->func_defaults;
  const Known* const known = defaults != nullptr ? Find(defaults) : nullptr;
  const bool is_made = known != nullptr && known->state != Known::State::kSource;
  for (size_t i = 0; is_made && i < known->items.size(); ++i) {
    Force(PyTuple_GET_ITEM(defaults, static_cast<Py_ssize_t>(i)), known->items[i]);
  }
  if (function->func_kwdefaults != nullptr) FixValues(function->func_kwdefaults);
}

void Recorder::BindPending(FrameState& f) {
  PyCodeObject* code = f.code;
  const int argcount = code->co_argcount;
  const int named = argcount + code->co_kwonlyargcount;
  const size_t positional = pending_.args.size() - pending_.names.size();
  const bool has_varargs = code->co_flags & CO_VARARGS;
  absl::InlinedVector<bool, 16> given(static_cast<size_t>(named));
  for (size_t i = 0; i < positional && i < static_cast<size_t>(argcount); ++i) {
    f.shadows[i] = pending_.shadows[i];
    given[i] = true;
  }
  if (has_varargs && f.objects[named] != nullptr && !IsConstantTuple(f.objects[named])) {
    Known& known = AddFresh(f.objects[named]);
    for (size_t i = static_cast<size_t>(argcount); i < positional; ++i) known.items.push_back(pending_.shadows[i]);
  }
  PyObject* kwargs = nullptr;
  if (code->co_flags & CO_VARKEYWORDS) {
    kwargs = f.objects[named + (has_varargs ? 1 : 0)];
    if (kwargs != nullptr) AddFresh(kwargs);
  }
  for (size_t k = 0; k < pending_.names.size(); ++k) {
    PyObject* name = pending_.names[k];
    Shadow shadow = pending_.shadows[positional + k];
    bool found = false;
    for (int i = code->co_posonlyargcount; i < named && !found; ++i) {
      PyObject* parameter = SlotName(code, i);
      if (parameter == name || PyUnicode_Compare(parameter, name) == 0) {
        f.shadows[i] = shadow;
        given[static_cast<size_t>(i)] = true;
        found = true;
      }
    }
    if (found) continue;
    PyObject* const value = pending_.args[positional + k];
    if (kwargs != nullptr && LeavesOpen(value, shadow)) {
      KeepValue(kwargs, name, shadow);
    } else {
      Force(value, shadow);
    }
  }
  // Defaults: fixed with the function, but a mutable one is an object that lives on. Those of a function that the trace
  // has made are what it was given.
  const bool is_fixed = IsFixedFunction(f);
  const Known* own = Find(reinterpret_cast<PyObject*>(f.function));
  const bool is_made = own != nullptr && own->state != Known::State::kSource;
  for (int i = 0; i < named; ++i) {
    if (given[static_cast<size_t>(i)] || f.objects[i] == nullptr) continue;
    PyObject* value = f.objects[i];
    if (PyCell_Check(value)) continue;
    if (is_made) {
      PyObject* holder = i < argcount ? f.function->func_defaults : f.function->func_kwdefaults;
      AdoptElements(holder);  // it may have existed before the recording, which began between the two
      if (i < argcount) {
        f.shadows[i] = ElementShadow(holder, i - argcount + PyTuple_GET_SIZE(holder));
      } else if (const Shadow* const open = StoredItem(holder, SlotName(code, i)); open != nullptr) {
        f.shadows[i] = *open;
      }
      AdoptResult(value);
      continue;
    }
    if (i >= argcount) {
      // Keyword-only defaults live in a dict that may change.
      RefuseMutatedDict(f.function->func_kwdefaults);
      SourceId source = guards_.Child(SourceOrPin(reinterpret_cast<PyObject*>(f.function)), Accessor::kKwDefault, 0,
                                      SlotName(code, i), value);
      f.shadows[i] = FromSource(source, value, is_fixed);
      continue;
    }
    if (!is_fixed) {
      const Py_ssize_t index = i - argcount + PyTuple_GET_SIZE(f.function->func_defaults);
      const SourceId function = SourceOf(reinterpret_cast<PyObject*>(f.function));
      f.shadows[i] = FromSource(guards_.Child(function, Accessor::kDefault, index, nullptr, value), value, false);
      continue;
    }
    if (IsScalar(value)) continue;
    AdoptPinned(value, std::string("default ") + PyUnicode_AsUTF8(SlotName(code, i)));
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
  const std::string_view name = InstructionAt(caller.code, caller.offset).name;
  return name == "CONTAINS_OP" || name == "LIST_EXTEND" || name == "SET_UPDATE" || name == "DICT_UPDATE" ||
         name == "DICT_MERGE" || name == "UNPACK_SEQUENCE" || name == "UNPACK_EX";
}

void Recorder::LeaveInlined(FrameState& f, FrameNote& note, FrameEnd end, PyObject* value, Shadow shadow) {
  frames_.pop_back();
  note.inlined = false;
  FrameNote& caller = *static_cast<FrameNote*>(frames_.back()->tracer_data);
  const auto hand_over = [&] {
    const bool has_content = PyTuple_Check(value) || PyList_Check(value) || PyDict_Check(value) || IsAnySet(value) ||
                             open_iterators_.contains(value);
    if (has_content && GoesToC(*frames_.back(), f)) return ForceDeep(value, shadow, true);
    Force(value, shadow);
  };
  if (end == FrameEnd::kGenerator) {
    // The frame moves into the generator object: that is how it is found when it is resumed.
    generators_[FrameOfGenerator(value)] = {Ref<>::New(value),
                                            std::vector<Shadow>(f.shadows, f.shadows + f.nlocalsplus),
                                            Ref<>::New(reinterpret_cast<PyObject*>(f.function)), false, 0};
    AddFresh(value, Known::State::kOpaque);
    caller.returned = value;
    caller.returned_shadow = Shadow();
    return;
  }
  if (end == FrameEnd::kYielded) {
    auto it = generators_.find(f.raw);
    if (it != generators_.end()) {
      // Locals, and the value stack below the value that was handed out: in its place comes what is sent in.
      it->second.shadows.assign(f.shadows, f.shadows + f.nlocalsplus + f.depth - 1);
    }
    hand_over();
    caller.returned = value;
    caller.returned_shadow = Shadow();
    return;
  }
  if (end == FrameEnd::kReturned && value != nullptr) {
    if (!note.direct) {
      hand_over();
      shadow = Shadow();
    }
    caller.returned = value;
    caller.returned_shadow = shadow;
  }
}

void Recorder::Raised(FrameState& f, FrameNote& note, const Event& e) {
  if (note.marks.switches_inference) aten::SeeEveryOp(true);
  if (repeated_calls_) repeated_calls_->Forget();
  if (checkpoint_ && checkpoint_->caller == &f) {
    checkpoint_.reset();
    if (!aten_.pending) aten_.pending = Break{Reason::exception_from_op, ""};
  }
  const bool is_of_numpy = IsArrayCall(note);
  ForgetArrayCall(note);
  if (aten_.pending) return;
  if (note.expect.kind == Expect::Kind::kTorch || is_of_numpy) {
    aten_.pending = Break{Reason::exception_from_op, ""};
  } else if (ReadsVariable(e.op)) {
    // No guard can be on the value of a variable without one.
    aten_.pending = Break{Reason::unknown_operation, "a variable without a value"};
  } else if (e.op == Op::kRaise && e.n > 0 && PyExceptionInstance_Check(e.in[0]) && SourceOf(e.in[0]).valid()) {
    // A handler leaves it with another traceback and context.
    aten_.pending = Break{Reason::unknown_mutation, "an exception that existed before is raised"};
  } else if (note.own_effect || e.op == Op::kStoreAttr || e.op == Op::kDeleteAttr || e.op == Op::kStoreSubscr ||
             e.op == Op::kDeleteSubscr) {
    // Before has taken the change for done; it was not, or only in part.
    aten_.pending = Break{Reason::unknown_mutation, "it raised an exception"};
  }
}

}  // namespace frametap
