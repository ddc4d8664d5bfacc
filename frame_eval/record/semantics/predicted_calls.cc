#include "frame_eval/record/semantics/predicted_calls.h"

#include <algorithm>

#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/numbers/sequences.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/objects/outside_containers.h"
#include "frame_eval/record/objects/own_dicts.h"
#include "frame_eval/record/semantics/cached_calls.h"
#include "frame_eval/record/semantics/calls.h"
#include "frame_eval/segment/cached_functions.h"
#include "guards/objects/dict_items.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/well_known_objects.h"
#include "guards/throw_if_null.h"
#include "ir/dcheck.h"
#include "ir/graph/walk.h"

namespace frametap {
namespace {

constexpr int kDeepest = 8;

PyObject* LentBy(const Trace& trace, PyObject* object) {
  if (trace.predictions == nullptr) return nullptr;
  const auto known = trace.predictions->lent.find(object);
  return known == trace.predictions->lent.end() ? nullptr : known->second.second.get();
}

[[noreturn]] void Blame(const Trace& trace, PyObject* cached) {
  trace.predictions->blamed = Ref<>::New(cached);
  throw Break{Reason::escaping_object, "an object in the cache of " + CallableName(cached)};
}

// Whether a number is computed from sizes and arguments alone, which are known before a graph runs.
bool IsKnownAtEntry(const Trace& trace, ValueId value) {
  const Graph& graph = trace.aten.graph();
  const auto is_number = [](const Arg& arg) {
    return arg.kind == Arg::Kind::kValue || arg.constant.isInt() || arg.constant.isDouble();
  };
  const auto is_known = [&](ValueId id, const Node* node) {
    if (node == nullptr) return trace.aten.tensors.SourceOfInput(id).valid() && graph.value(id).type.is_number();
    const BuiltinOp op = node->builtin_op;
    return node->is_scalar() && !IsAssumption(op) && op != BuiltinOp::kSize && op != BuiltinOp::kListItem &&
           std::all_of(node->args.begin(), node->args.end(), is_number);
  };
  return WalkOperands(graph, value,
                      [&](ValueId id, const Node* node) { return is_known(id, node) ? Walk::kOn : Walk::kEnd; });
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

bool IsPlainScalar(PyObject* object) {
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

bool IsAsPredicted(Trace& trace, PyObject* predicted, PyObject* result) {
  return IsSameResult(predicted, result, [&trace](PyObject* part) { return IsStanding(trace, part); });
}

// F2
bool IsPredictable(Trace& trace, const PredictedCall& call, PyObject* object, Shadow shadow, int depth = 0) {
  if (depth > kDeepest) return false;
  if (IsPlainScalar(object)) {
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
    for (const auto [key, value] : DictItems(object)) {
      if (!IsPlainScalar(key) || !IsPlainKey(key)) return false;
      if (!IsPredictable(trace, call, value, ShadowOfItem(trace, object, key), depth + 1)) return false;
    }
    return known->open_keys == nullptr;
  }
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
    if (!IsPredictable(trace, call, PySequence_Fast_GET_ITEM(object, i), ElementShadow(trace, object, i), depth + 1))
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

// Records `object`, of the cache, as what was predicted.
Shadow Lend(Trace& trace, const PredictedCall& call, PyObject* predicted, Shadow shadow, PyObject* object) {
  if (IsPlainScalar(predicted)) return shadow;
  if (IsStanding(trace, predicted)) return Shadow();
  ObjectRecord* known = trace.objects.Find(object);
  if (known != nullptr && LentBy(trace, object) != call.cached.get()) Blame(trace, call.cached.get());
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
    while (PyDict_Next(predicted, &at, &key, &value) && PyDict_Next(object, &at_other, &other_key, &other)) {
      const Shadow now = part(value, ShadowOfItem(trace, predicted, key), other, ShadowOfItem(trace, object, key));
      if (!is_again && now.kind != Shadow::Kind::kNone) KeepValue(trace, object, other_key, now);
    }
  } else {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
      const Shadow now = part(PySequence_Fast_GET_ITEM(predicted, i), ElementShadow(trace, predicted, i),
                              PySequence_Fast_GET_ITEM(object, i), ElementShadow(trace, object, i));
      if (!is_again) trace.objects.Find(object)->items.push_back(now);
    }
  }
  trace.predictions->lent.try_emplace(object, Ref<>::New(object), call.cached);
  return Shadow();
}

}  // namespace

std::vector<PyObject*> PredictedCall::Arguments() const {
  std::vector<PyObject*> all;
  for (const Ref<>& arg : args) all.push_back(arg.get());
  return all;
}

std::vector<PyObject*> PredictedCall::Keywords() const {
  PyObject** const first = reinterpret_cast<PyTupleObject*>(names.get())->ob_item;
  return {first, first + PyTuple_GET_SIZE(names.get())};
}

bool IsLent(const Trace& trace, PyObject* object) { return LentBy(trace, object) != nullptr; }

void ThrowLent(const Trace& trace, PyObject* object) { Blame(trace, LentBy(trace, object)); }

Ref<> TakeBlamed(const Trace& trace, const Break& reason) {
  if (trace.predictions == nullptr) return Ref<>();
  Ref<> taken = std::exchange(trace.predictions->blamed, Ref<>());
  return reason.reason == Reason::escaping_object ? std::move(taken) : Ref<>();
}

bool WantPrediction(Trace& trace, const Call& call) {
  if (PredictedIn(trace) != nullptr || trace.aten.pending || !trace.numbers.any_open()) return false;
  if (trace.store.IsByIdentity(call.callable)) return false;
  const CacheParts parts = PartsOfCached(call.callable);
  if (parts.cache == nullptr || !PyFunction_Check(parts.function)) return false;
  bool is_open = false;
  for (size_t i = 0; i < call.args.size(); ++i) {
    if (!IsPartOfKey(trace, call.args[i], call.shadows[i], &is_open)) return false;
  }
  if (!is_open) return false;
  const CacheEntry entry = EntryOf(parts, call.args.data(), call.args.size(), call.names.data(), call.names.size());
  if (PyObject* const found = entry.result(); found != nullptr && IsTensor(found)) return false;  // F2
  if (trace.predictions == nullptr) trace.predictions = std::make_unique<Predictions>();
  trace.predictions->call = std::make_unique<PredictedCall>();
  PredictedCall& predicted = *trace.predictions->call;
  predicted.cached = Ref<>::New(call.callable);
  predicted.function = Ref<>::New(parts.function);
  for (PyObject* arg : call.args) predicted.args.push_back(Ref<>::New(arg));
  predicted.names = KeywordsOf(call);
  predicted.shadows.assign(call.shadows.begin(), call.shadows.end());
  return true;
}

void BeginPrediction(Trace& trace) {
  PredictedCall& call = *PredictedIn(trace);
  FixByIdentity(trace, call.cached.get());
  for (size_t i = 0; i < call.args.size(); ++i) FixRest(trace, call.args[i].get(), call.shadows[i]);
  AdoptPinned(trace, call.function.get());
  PendingCall& pending = ExpectFrame(trace, call.function.get());
  pending.args = call.Arguments();
  pending.names = call.Keywords();
  pending.shadows = call.shadows;
  call.frames = trace.frames.inlined.size();
  call.effects = trace.effects.pending.size();
  call.decisions = trace.decisions.size();
  call.mutated = trace.objects.mutated_sources.size();
  call.thread = trace.thread.Now();
  call.epoch = ++trace.epoch;
  call.stage = PredictedCall::Stage::kFollowed;
  trace.aten.admits_none = true;
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
      return self != nullptr ? IsPlainScalar(self) || IsPlainContainer(self) || PyAnySet_Check(self)
                             : Py_TYPE(callable) == &PyMethodDescr_Type;
    }
    default:
      return false;
  }
}

void MeetInPrediction(Trace& trace, const FrameNote& note, const Event& e) {
  const PredictedCall& call = *PredictedIn(trace);
  const bool is_call = e.op == Op::kCall || e.op == Op::kCallEx;
  if (trace.effects.pending.size() != call.effects || trace.decisions.size() != call.decisions ||
      trace.objects.mutated_sources.size() != call.mutated || trace.aten.pending || note.op.opaque_operation ||
      (is_call && !OnlyComputes(e.in[0]))) {
    Blame(trace, call.cached.get());
  }
}

bool EndPrediction(Trace& trace, FrameNote& note, PyObject* result) {
  PredictedCall& call = *PredictedIn(trace);
  call.stage = PredictedCall::Stage::kAsked;
  const ThreadChanges::Mark now = trace.thread.Now();
  const bool is_pure = trace.effects.pending.size() == call.effects && trace.decisions.size() == call.decisions &&
                       trace.objects.mutated_sources.size() == call.mutated && !trace.aten.pending &&
                       now.sets == call.thread.sets && now.resets == call.thread.resets &&
                       now.state == call.thread.state && note.op.returned == result;
  call.shadow = note.op.returned_shadow;
  note.op.returned = nullptr;
  note.op.returned_shadow = Shadow();
  if (!is_pure || !IsPredictable(trace, call, result, call.shadow)) Blame(trace, call.cached.get());
  call.result = Ref<>::New(result);
  const CacheParts parts = PartsOfCached(call.cached.get());
  std::vector<PyObject*> values = call.Arguments();
  const std::vector<PyObject*> names = call.Keywords();
  const CacheEntry entry = EntryOf(parts, values.data(), values.size(), names.data(), names.size());
  const bool is_other = entry.found != nullptr && !IsAsPredicted(trace, result, entry.result());
  if (entry.is_doubtful || is_other) return false;
  values.insert(values.begin(), {result, call.names.get()});
  std::vector<Shadow> shadows = call.shadows;
  shadows.insert(shadows.begin(), {call.shadow, Shadow()});
  if (trace.effects.undo) trace.effects.undo->Before(Effect::Kind::kAsk, call.cached.get(), "");
  PushEffect(trace, Effect::Kind::kAsk, call.cached.get(), "", values, std::move(shadows));
  note.op.own_effect = true;
  note.op.expect.Reset();
  call.note = &note;
  note.op.opaque_operation = true;
  return true;
}

bool HasAsked(const Trace& trace, const FrameNote& note) {
  const PredictedCall* const call = PredictedIn(trace);
  return call != nullptr && call->stage == PredictedCall::Stage::kAsked && call->note == &note;
}

Shadow AskedResult(Trace& trace, PyObject* result) {
  const std::unique_ptr<PredictedCall> call = std::move(trace.predictions->call);
  FT_DCHECK(call != nullptr);
  if (!IsAsPredicted(trace, call->result.get(), result)) Blame(trace, call->cached.get());
  return Lend(trace, *call, call->result.get(), call->shadow, result);
}

}  // namespace frametap
