#include "frame_eval/record/semantics/foretold_calls.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/numbers/sequences.h"
#include "frame_eval/record/objects/force.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/objects/outside_containers.h"
#include "frame_eval/record/objects/own_dicts.h"
#include "frame_eval/record/semantics/cached_calls.h"
#include "frame_eval/record/semantics/calls.h"
#include "frame_eval/record/trace/admitted_ops.h"
#include "frame_eval/segment/cached_functions.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/value.h"
#include "guards/objects/well_known_objects.h"
#include "guards/throw_if_null.h"
#include "ir/dcheck.h"

namespace frametap {
namespace {

constexpr int kDeepest = 8;

// The calls that a recording has foretold. There are few recordings at a time.
struct Foretold {
  const Trace* trace;
  std::unique_ptr<ForetoldCall> call;
  absl::flat_hash_map<PyObject*, std::pair<Ref<>, Ref<>>> lent;  // objects of caches, with the functions
};

// All under Python's lock, and never destroyed: the interpreter may be gone by then.
struct State {
  std::vector<std::unique_ptr<Foretold>> all;
  absl::flat_hash_map<std::pair<const SegmentCache*, PyObject*>, Ref<>> by_identity;  // with weak references
  Ref<> blamed;                                                                       // TakeBlamed
};
State& Now() {
  static State& state = *new State();
  return state;
}

Foretold* Find(const Trace& trace) {
  for (const std::unique_ptr<Foretold>& one : Now().all) {
    if (one->trace == &trace) return one.get();
  }
  return nullptr;
}

PyObject* LentBy(const Trace& trace, PyObject* object) {
  Foretold* const here = Find(trace);
  if (here == nullptr) return nullptr;
  const auto known = here->lent.find(object);
  return known == here->lent.end() ? nullptr : known->second.second.get();
}

[[noreturn]] void Blame(PyObject* cached) {
  Now().blamed = Ref<>::New(cached);
  throw Break{Reason::escaping_object, "an object in the cache of " + CallableName(cached)};
}

// Whether a number is computed from sizes and arguments alone, which are known before a graph runs.
bool IsKnownAtEntry(const Trace& trace, ValueId value) {
  const Graph& graph = trace.aten.graph();
  const NodeId def = graph.value(value).def;
  if (!def.valid()) return trace.aten.tensors.SourceOfInput(value).valid() && graph.value(value).type.is_number();
  const Node& node = graph.node(def);
  if (!node.is_scalar() || IsAssumption(node.builtin_op)) return false;
  if (node.builtin_op == BuiltinOp::kSize || node.builtin_op == BuiltinOp::kListItem) return false;
  bool is_known = true;
  for (const Arg& arg : node.args) {
    is_known = is_known && (arg.kind == Arg::Kind::kValue ? IsKnownAtEntry(trace, arg.value)
                                                          : arg.constant.isInt() || arg.constant.isDouble());
  }
  return is_known;
}

bool IsKnownAtEntry(const Trace& trace, Shadow shadow) {
  return shadow.kind == Shadow::Kind::kSource ||
         (shadow.kind == Shadow::Kind::kValue && IsKnownAtEntry(trace, ValueId(shadow.id)));
}

// An argument that is hashed and compared by value, or by its address. `*is_open`: there is a number in it that is not
// fixed.
bool IsPartOfKey(Trace& trace, PyObject* object, Shadow shadow, bool* is_open, int depth = 0) {
  if (depth > kDeepest) return false;
  if (IsScalar(object)) {
    if (!IsPlainKey(object)) return false;
    if (!LeavesOpen(trace, object, shadow)) return true;
    *is_open = true;
    return IsKnownAtEntry(trace, shadow);
  }
  if (IsPlainTuple(object)) {
    if (trace.objects.Find(object) != nullptr) {
      GuardTypeOrIdentity(trace, object);
      AdoptElements(trace, object);
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i) {
      if (!IsPartOfKey(trace, PyTuple_GET_ITEM(object, i), ElementShadow(trace, object, i), is_open, depth + 1))
        return false;
    }
    return true;
  }
  const ObjectRecord* const known = trace.objects.Find(object);
  const bool is_made = known != nullptr && known->state != ObjectRecord::State::kSource;
  return Py_TYPE(object)->tp_hash == PyBaseObject_Type.tp_hash && !IsTensor(object) && !is_made;
}

// Fixes of an argument what is not left open.
void FixRest(Trace& trace, PyObject* object, Shadow shadow) {
  if (IsScalar(object)) {
    LeavesOpen(trace, object, shadow) ? FixType(trace, shadow) : Specialize(trace, object, shadow);
  } else if (IsPlainTuple(object)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i)
      FixRest(trace, PyTuple_GET_ITEM(object, i), ElementShadow(trace, object, i));
  } else {
    FixByIdentity(trace, object);
  }
}

bool IsForeseen(PyObject* object) {
  return object == Py_None || PyBool_Check(object) || PyLong_CheckExact(object) || PyFloat_CheckExact(object) ||
         PyUnicode_CheckExact(object);
}

bool IsPlainContainer(PyObject* object) {
  return PyTuple_CheckExact(object) || PyList_CheckExact(object) || PyDict_CheckExact(object);
}

// A part of the result that is the very object at each call.
bool IsStanding(Trace& trace, PyObject* object) {
  if (IsConstantTuple(trace, object)) return true;
  const ObjectRecord* const known = trace.objects.Find(object);
  return known != nullptr && known->state == ObjectRecord::State::kSource;
}

bool IsAsForetold(Trace& trace, PyObject* foretold, PyObject* result) {
  return IsSameResult(foretold, result, [&trace](PyObject* part) { return IsStanding(trace, part); });
}

// F2
bool IsForetold(Trace& trace, const ForetoldCall& call, PyObject* object, Shadow shadow, int depth = 0) {
  if (depth > kDeepest) return false;
  if (IsForeseen(object)) {
    if (!LeavesOpen(trace, object, shadow)) {
      Specialize(trace, object, shadow);
      return true;
    }
    FixType(trace, shadow);
    return IsKnownAtEntry(trace, shadow);
  }
  if (IsTensor(object)) return false;
  if (IsStanding(trace, object)) return true;
  const ObjectRecord* const known = trace.objects.Find(object);
  if (known == nullptr || !IsPlainContainer(object) || known->epoch < call.epoch || IsLent(trace, object)) {
    return false;
  }
  if (PyDict_CheckExact(object)) {
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(object, &at, &key, &value)) {
      const Shadow* const open = StoredItem(trace, object, key);
      if (!IsForeseen(key) || !IsPlainKey(key)) return false;
      if (!IsForetold(trace, call, value, open != nullptr ? *open : Shadow(), depth + 1)) return false;
    }
    return known->open_keys == nullptr;
  }
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
    if (!IsForetold(trace, call, PySequence_Fast_GET_ITEM(object, i), ElementShadow(trace, object, i), depth + 1))
      return false;
  }
  return true;
}

// The number counts as both, so that one record serves the object that two calls have returned.
void MakeEqual(Trace& trace, PyObject* number, Shadow a, Shadow b) {
  if (a.kind == b.kind && a.id == b.id) return;
  if (IsNumber(number) && DecideNumbers(trace, number, a, number, b, Py_EQ, false)) return;
  Specialize(trace, number, a);
  Specialize(trace, number, b);
}

// Records `object`, of the cache, as what was foretold.
Shadow Lend(Trace& trace, const ForetoldCall& call, PyObject* foretold, Shadow shadow, PyObject* object) {
  if (IsForeseen(foretold)) return shadow;
  if (IsStanding(trace, foretold)) return Shadow();
  ObjectRecord* known = trace.objects.Find(object);
  if (known != nullptr && LentBy(trace, object) != call.cached.get()) Blame(call.cached.get());
  const bool is_again = known != nullptr;
  if (!is_again) known = &AddFresh(trace, object);
  const auto part = [&](PyObject* item, Shadow of_item, PyObject* actual, Shadow before) {
    const Shadow now = Lend(trace, call, item, of_item, actual);
    if (is_again && IsScalar(actual)) MakeEqual(trace, actual, before, now);
    return now;
  };
  if (PyDict_CheckExact(object)) {
    PyObject *key, *value, *other_key, *other;
    Py_ssize_t at = 0, at_other = 0;
    while (PyDict_Next(foretold, &at, &key, &value) && PyDict_Next(object, &at_other, &other_key, &other)) {
      const Shadow* const open = StoredItem(trace, foretold, key);
      const Shadow* const before = StoredItem(trace, object, key);
      const Shadow now = part(value, open != nullptr ? *open : Shadow(), other, before != nullptr ? *before : Shadow());
      if (!is_again && now.kind != Shadow::Kind::kNone) KeepValue(trace, object, other_key, now);
    }
  } else {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
      const Shadow now = part(PySequence_Fast_GET_ITEM(foretold, i), ElementShadow(trace, foretold, i),
                              PySequence_Fast_GET_ITEM(object, i), ElementShadow(trace, object, i));
      if (!is_again) trace.objects.Find(object)->items.push_back(now);
    }
  }
  Find(trace)->lent.try_emplace(object, Ref<>::New(object), call.cached);
  return Shadow();
}

}  // namespace

bool has_foretold = false;

std::vector<PyObject*> ForetoldCall::Arguments() const {
  std::vector<PyObject*> all;
  for (const Ref<>& arg : args) all.push_back(arg.get());
  return all;
}

ForetoldCall* FindForetold(const Trace& trace) {
  Foretold* const here = Find(trace);
  return here != nullptr ? here->call.get() : nullptr;
}

void ForgetForetold(const Trace& trace) {
  if (Foretold* const here = Find(trace)) here->call.reset();
}

void EndForetoldCalls(const Trace& trace) {
  if (!has_foretold) return;
  std::vector<std::unique_ptr<Foretold>> ended;  // what it holds may end
  const auto is_other = [&](const std::unique_ptr<Foretold>& one) { return one->trace != &trace; };
  const auto first = std::partition(Now().all.begin(), Now().all.end(), is_other);
  std::move(first, Now().all.end(), std::back_inserter(ended));
  Now().all.erase(first, Now().all.end());
  has_foretold = !Now().all.empty();
}

bool IsLent(const Trace& trace, PyObject* object) { return LentBy(trace, object) != nullptr; }

void ThrowLent(const Trace& trace, PyObject* object) { Blame(LentBy(trace, object)); }

void NoteByIdentity(const SegmentCache& store, PyObject* cached) {
  Ref<> weak = Ref<>::Steal(PyWeakref_NewRef(cached, nullptr));
  PyErr_Clear();
  if (weak) Now().by_identity.insert_or_assign({&store, cached}, std::move(weak));
}

bool IsByIdentity(const SegmentCache& store, PyObject* cached) {
  const auto known = Now().by_identity.find({&store, cached});
  return known != Now().by_identity.end() && PyWeakref_GET_OBJECT(known->second.get()) == cached;
}

Ref<> TakeBlamed(const Break& reason) {
  Ref<> taken = std::move(Now().blamed);
  Now().blamed = Ref<>();
  return reason.reason == Reason::escaping_object ? std::move(taken) : Ref<>();
}

bool WantForetold(Trace& trace, const Call& call) {
  if (ForetoldIn(trace) != nullptr || trace.aten.pending || !trace.numbers.any_open()) return false;
  if (IsByIdentity(trace.store, call.callable)) return false;
  const CacheParts parts = PartsOfCached(call.callable);
  if (parts.cache == nullptr || !PyFunction_Check(parts.function)) return false;
  bool is_open = false;
  for (size_t i = 0; i < call.args.size(); ++i) {
    if (!IsPartOfKey(trace, call.args[i], call.shadows[i], &is_open)) return false;
  }
  if (!is_open) return false;
  const CacheEntry entry = EntryOf(parts, call.args.data(), call.args.size(), call.names.data(), call.names.size());
  if (PyObject* const found = entry.result(); found != nullptr && IsTensor(found)) return false;  // F2
  Foretold* here = Find(trace);
  if (here == nullptr) here = Now().all.emplace_back(new Foretold{&trace, nullptr, {}}).get();
  has_foretold = true;
  here->call = std::make_unique<ForetoldCall>();
  ForetoldCall& foretold = *here->call;
  foretold.cached = Ref<>::New(call.callable);
  foretold.function = Ref<>::New(parts.function);
  for (PyObject* arg : call.args) foretold.args.push_back(Ref<>::New(arg));
  foretold.names = Must(PyTuple_New(static_cast<Py_ssize_t>(call.names.size())));
  for (size_t i = 0; i < call.names.size(); ++i)
    PyTuple_SET_ITEM(foretold.names.get(), static_cast<Py_ssize_t>(i), Py_NewRef(call.names[i]));
  foretold.shadows.assign(call.shadows.begin(), call.shadows.end());
  return true;
}

void BeginForetold(Trace& trace) {
  ForetoldCall& call = *ForetoldIn(trace);
  FixByIdentity(trace, call.cached.get());
  for (size_t i = 0; i < call.args.size(); ++i) FixRest(trace, call.args[i].get(), call.shadows[i]);
  AdoptPinned(trace, call.function.get());
  PendingCall& pending = ExpectFrame(trace, call.function.get());
  pending.args.clear();
  pending.names.clear();
  for (const Ref<>& arg : call.args) pending.args.push_back(arg.get());
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(call.names.get()); ++i)
    pending.names.push_back(PyTuple_GET_ITEM(call.names.get(), i));
  pending.shadows = call.shadows;
  call.frames = trace.frames.inlined.size();
  call.effects = trace.effects.pending.size();
  call.decisions = trace.decisions.size();
  call.mutated = trace.objects.mutated_sources.size();
  call.thread = trace.thread.Now();
  call.epoch = ++trace.epoch;
  call.stage = ForetoldCall::Stage::kFollowed;
  aten::admits_none = true;
}

// Whether the functions of a module of C code change nothing of the process.
static bool IsOfPlainModule(PyObject* module) {
  static const auto* const plain = [] {
    auto* const modules = new std::vector<PyObject*>();
    for (const char* name : {"builtins", "math", "_operator", "itertools", "_functools"})
      modules->push_back(Must(PyImport_ImportModule(name)).Release());
    return modules;
  }();
  return std::find(plain->begin(), plain->end(), module) != plain->end();
}

// Whether a call of C code only computes, or changes an object of which it is known that it is changed.
static bool OnlyComputes(PyObject* callable) {
  const CallableRow* const row = FindCallable(callable);
  if (row == nullptr || Py_TYPE(callable) == Objects().cached_function)
    return Py_TYPE(callable) != Objects().cached_function;
  switch (row->conduct) {
    case Conduct::kPure:
    case Conduct::kPureObjects:
    case Conduct::kTransparent:
    case Conduct::kMutates:
      return true;
    case Conduct::kSpecial: {
      if (PyType_Check(callable)) {
        const auto* const type = reinterpret_cast<PyTypeObject*>(callable);
        return (type->tp_flags & Py_TPFLAGS_HEAPTYPE) == 0;
      }
      PyObject* const self = PyCFunction_Check(callable) ? PyCFunction_GET_SELF(callable) : nullptr;
      if (self != nullptr && PyModule_Check(self)) return IsOfPlainModule(self);
      return self != nullptr ? IsForeseen(self) || IsPlainContainer(self) || PyAnySet_Check(self)
                             : Py_TYPE(callable) == &PyMethodDescr_Type;
    }
    default:
      return false;
  }
}

void MeetInForetold(Trace& trace, const FrameNote& note, const Event& e) {
  const ForetoldCall& call = *ForetoldIn(trace);
  const bool is_call = e.op == Op::kCall || e.op == Op::kCallEx;
  if (trace.effects.pending.size() != call.effects || trace.decisions.size() != call.decisions ||
      trace.objects.mutated_sources.size() != call.mutated || trace.aten.pending || note.op.opaque_operation ||
      (is_call && !OnlyComputes(e.in[0]))) {
    Blame(call.cached.get());
  }
}

bool EndForetold(Trace& trace, FrameNote& note, PyObject* result) {
  ForetoldCall& call = *ForetoldIn(trace);
  call.stage = ForetoldCall::Stage::kForetold;
  const ThreadChanges::Mark now = trace.thread.Now();
  const bool is_pure = trace.effects.pending.size() == call.effects && trace.decisions.size() == call.decisions &&
                       trace.objects.mutated_sources.size() == call.mutated && !trace.aten.pending &&
                       now.sets == call.thread.sets && now.resets == call.thread.resets &&
                       now.state == call.thread.state && note.op.returned == result;
  call.shadow = note.op.returned_shadow;
  note.op.returned = nullptr;
  note.op.returned_shadow = Shadow();
  if (!is_pure || !IsForetold(trace, call, result, call.shadow)) Blame(call.cached.get());
  call.result = Ref<>::New(result);
  const CacheParts parts = PartsOfCached(call.cached.get());
  std::vector<PyObject*> values = call.Arguments();
  const CacheEntry entry =
      EntryOf(parts, values.data(), values.size(), reinterpret_cast<PyTupleObject*>(call.names.get())->ob_item,
              static_cast<size_t>(PyTuple_GET_SIZE(call.names.get())));
  const bool is_other = entry.found != nullptr && !IsAsForetold(trace, result, entry.result());
  if (entry.is_doubtful || is_other) return false;
  values.insert(values.begin(), {result, call.names.get()});
  std::vector<Shadow> shadows = call.shadows;
  shadows.insert(shadows.begin(), {call.shadow, Shadow()});
  if (trace.effects.undo) trace.effects.undo->Before(Effect::Kind::kCall, call.cached.get(), kAsk);
  PushEffect(trace, Effect::Kind::kCall, call.cached.get(), kAsk, values, std::move(shadows));
  note.op.own_effect = true;
  note.op.expect.Reset();
  call.note = &note;
  note.op.opaque_operation = true;
  return true;
}

bool HasAsked(const Trace& trace, const FrameNote& note) {
  const ForetoldCall* const call = ForetoldIn(trace);
  return call != nullptr && call->stage == ForetoldCall::Stage::kForetold && call->note == &note;
}

Shadow AskedResult(Trace& trace, PyObject* result) {
  const std::unique_ptr<ForetoldCall> call = std::move(Find(trace)->call);
  FT_DCHECK(call != nullptr);
  if (!IsAsForetold(trace, call->result.get(), result)) Blame(call->cached.get());
  return Lend(trace, *call, call->result.get(), call->shadow, result);
}

}  // namespace frametap
