#include "frame_eval/record/objects/garbage.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "frame_eval/record/objects/knowledge.h"
#include "guards/objects/dict_items.h"
#include "guards/objects/object_end.h"
#include "guards/objects/torch_tensor.h"

namespace frametap {

static bool DropGarbage(Trace& trace, std::vector<ObjectRecord*>* objects, bool backwards);
namespace {

constexpr size_t kFewMade = 128;        // objects that are looked at before each instruction in any case
constexpr size_t kFarthestStep = 1024;  // objects that are looked at to settle one

bool IsAtRest(PyObject* object) {
  return IsScalar(object) || PyType_Check(object) || PyModule_Check(object) || PyCode_Check(object) ||
         IsTensor(object) || !PyObject_IS_GC(object);
}

// Its content can change without an operation that stores into it.
bool IsAtWork(PyObject* object) {
  return PyIter_Check(object) || IsGenerator(object) || PyExceptionInstance_Check(object) || PyFrame_Check(object) ||
         PyTraceBack_Check(object);
}

// An object that the recorder has not met, and that cannot be changed.
bool IsFixedKind(PyObject* object) {
  return PyTuple_CheckExact(object) || PyMethod_Check(object) || PyCFunction_Check(object) ||
         PyFunction_Check(object) || PyFrozenSet_CheckExact(object) || PySlice_Check(object);
}

// Appends what the object holds. The globals of a function are left out: a module holds them.
void AddParts(PyObject* object, std::vector<PyObject*>* out) {
  if (PyFunction_Check(object)) {
    auto* const function = reinterpret_cast<PyFunctionObject*>(object);
    for (PyObject* part :
         {function->func_closure, function->func_defaults, function->func_kwdefaults, function->func_dict}) {
      if (part != nullptr) out->push_back(part);
    }
    return;
  }
  AddHeld(object, out);
}

}  // namespace

// Returns whether the object, and all that it reaches and the trace has made, is settled now.
static bool Settle(Trace& trace, PyObject* start) {
  if (!trace.lifetimes.settles) return false;
  std::vector<ObjectRecord*> group;
  std::vector<PyObject*> todo{start};
  absl::flat_hash_set<PyObject*> met;
  absl::flat_hash_set<PyObject*> dicts;  // of instances that are in the group
  while (!todo.empty()) {
    PyObject* const object = todo.back();
    todo.pop_back();
    if (IsAtRest(object)) continue;
    if (trace.lifetimes.watched.contains(object) || IsAtWork(object)) return false;
    ObjectRecord* const known = trace.objects.Find(object);
    if (known != nullptr && (known->settled || known->state == ObjectRecord::State::kSource)) continue;
    if (!met.insert(object).second) continue;
    if (met.size() > kFarthestStep) return false;
    if (known != nullptr) {
      group.push_back(known);
      PyObject** const dict = _PyObject_GetDictPtr(object);
      if (dict != nullptr && *dict != nullptr) dicts.insert(*dict);
    } else if (!IsFixedKind(object) && !dicts.contains(object)) {
      return false;
    }
    AddParts(object, &todo);
  }
  for (ObjectRecord* known : group) known->settled = true;
  return true;
}

static void SettleMade(Trace& trace) {
  // The youngest ones are still being filled.
  for (size_t i = 0; i + kFewMade / 4 < trace.lifetimes.made.size(); ++i) {
    ObjectRecord* const known = trace.lifetimes.made[i];
    if (PyObject* const object = known->pin.get(); object != nullptr && !known->settled) Settle(trace, object);
  }
  const auto settled = std::stable_partition(trace.lifetimes.made.begin(), trace.lifetimes.made.end(),
                                             [](ObjectRecord* known) { return !known->settled; });
  trace.lifetimes.settled.insert(trace.lifetimes.settled.end(), settled, trace.lifetimes.made.end());
  trace.lifetimes.made.erase(settled, trace.lifetimes.made.end());
  trace.lifetimes.settles_at = std::max(kFewMade, 2 * trace.lifetimes.made.size());
  if (trace.lifetimes.settled.size() < trace.lifetimes.sweeps_at) return;
  for (bool backwards = true; DropGarbage(trace, &trace.lifetimes.settled, backwards);) backwards = !backwards;
  trace.lifetimes.sweeps_at = std::max(kFewMade, 2 * trace.lifetimes.settled.size());
}

// All are looked at before each instruction again, until there are twice as many.
void Unsettle(Trace& trace) {
  if (trace.lifetimes.settled.empty()) return;
  for (ObjectRecord* known : trace.lifetimes.settled) known->settled = false;
  trace.lifetimes.made.insert(trace.lifetimes.made.end(), trace.lifetimes.settled.begin(),
                              trace.lifetimes.settled.end());
  trace.lifetimes.settled.clear();
  trace.lifetimes.settles_at = std::max(kFewMade, 2 * trace.lifetimes.made.size());
}

// W3
static void MeetStore(Trace& trace, PyObject* target, std::initializer_list<PyObject*> values) {
  const ObjectRecord* known = IsAtRest(target) ? nullptr : trace.objects.Find(target);
  if (known == nullptr || !known->settled) return;
  for (PyObject* value : values) {
    if (value != nullptr && !Settle(trace, value)) return Unsettle(trace);
  }
}

void MeetStores(Trace& trace, const FrameState& f, const Event& e) {
  switch (e.op) {
    case Op::kStoreAttr:
      return MeetStore(trace, e.in[1], {e.in[0]});
    case Op::kStoreSubscr:
      return MeetStore(trace, e.in[1], {e.in[0], e.in[2]});
    case Op::kStoreDeref:
      return MeetStore(trace, f.objects[e.arg], {e.in[0]});
    case Op::kListAppend:
    case Op::kSetAdd:
    case Op::kMapAdd:
    case Op::kListExtend:
    case Op::kSetUpdate:
    case Op::kDictUpdate:
    case Op::kDictMerge:
      return MeetStore(trace, e.in[0], {e.in[1], e.n > 2 ? e.in[2] : nullptr});
    case Op::kBinary:  // in place
      return MeetStore(trace, e.in[0], {e.in[1]});
    case Op::kCall:
    case Op::kCallEx:
      break;
    default:
      return;
  }
  PyObject* const callable = e.in[0];
  if (PyFunction_Check(callable) || PyType_Check(callable)) return;
  // C code may store any argument into any other one.
  absl::InlinedVector<PyObject*, 8> all;
  if (PyCFunction_Check(callable) && PyCFunction_GET_SELF(callable) != nullptr) {
    all.push_back(PyCFunction_GET_SELF(callable));
  } else if (PyMethod_Check(callable)) {
    if (PyFunction_Check(PyMethod_GET_FUNCTION(callable))) return;
    all.push_back(PyMethod_GET_SELF(callable));
  }
  for (int i = 1; i < e.n; ++i) {
    if (e.in[i] == nullptr) continue;
    if (e.op == Op::kCallEx && PyTuple_CheckExact(e.in[i])) {
      for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(e.in[i]); ++k) all.push_back(PyTuple_GET_ITEM(e.in[i], k));
    } else if (e.op == Op::kCallEx && PyDict_CheckExact(e.in[i])) {
      for (const auto [key, value] : DictItems(e.in[i])) all.push_back(value);
    } else {
      all.push_back(e.in[i]);
    }
  }
  for (PyObject* target : all) {
    for (PyObject* value : all) {
      if (value != target && !trace.lifetimes.settled.empty()) MeetStore(trace, target, {value});
    }
  }
}

// Returns whether it was garbage, and is gone.
static bool DropIfGarbage(Trace& trace, ObjectRecord* known) {
  PyObject* const object = known != nullptr ? known->pin.get() : nullptr;
  if (object == nullptr) return true;  // DropContainers was first
  // Most objects have more references than these two; the look-up is for the others only: this comes before each
  // instruction.
  const bool may_be_saved = Py_REFCNT(object) <= 2 && IsGenerator(object);
  const auto saved =
      may_be_saved ? trace.iteration.generators.find(FrameOfGenerator(object)) : trace.iteration.generators.end();
  if (Py_REFCNT(object) > 1 + (saved != trace.iteration.generators.end())) return false;
  if (trace.lifetimes.watched.contains(object) && IsGenerator(object) && EndRunsCodeNow(object)) {
    trace.lifetimes.dropped_generator = known->epoch;
    throw Break{Reason::finaliser_runs, "generator"};
  }
  if (saved != trace.iteration.generators.end()) trace.iteration.generators.erase(saved);
  trace.lifetimes.watched.erase(object);
  Forget(trace, object);
  const Ref<> last = std::move(known->pin);
  return true;
}

// object_ends/E2. Returns whether an object that the recording had made has died. Its content may be next, on
//    either side of it.
static bool DropGarbage(Trace& trace, std::vector<ObjectRecord*>* objects, bool backwards) {
  std::vector<ObjectRecord*>& all = *objects;
  const size_t count = all.size();
  const auto drop = [&trace, &all](size_t i) {
    if (DropIfGarbage(trace, all[i])) all[i] = nullptr;
  };
  for (size_t i = 0; i < count; ++i) drop(backwards ? count - 1 - i : i);
  all.erase(std::remove(all.begin(), all.end(), nullptr), all.end());
  return all.size() != count;
}

void DropAllGarbage(Trace& trace) {
  for (; trace.lifetimes.made_from < trace.objects.known.size(); ++trace.lifetimes.made_from) {
    ObjectRecord& known = trace.objects.known[trace.lifetimes.made_from];
    if (known.state != ObjectRecord::State::kSource && known.pin) trace.lifetimes.made.push_back(&known);
  }
  if (trace.lifetimes.made.size() >= std::max(kFewMade, trace.lifetimes.settles_at) && trace.lifetimes.settles)
    SettleMade(trace);
  for (bool backwards = true; DropGarbage(trace, &trace.lifetimes.made, backwards);) backwards = !backwards;
}

// Drops an object that only the recorder holds. Returns false if a variable of the entry frame has it, too.
static bool DropContainer(Trace& trace, ObjectRecord* known) {
  PyObject* const object = known->pin.get();
  if (std::find(trace.variables.base_cells.begin(), trace.variables.base_cells.end(), object) !=
      trace.variables.base_cells.end())
    return false;
  Forget(trace, object);
  const Ref<> last = std::move(known->pin);
  // Each call of a module makes a handful of tuples and dicts, and memory that was just used is in the caches.
  // (`made_` points to such places as well.)
  if (trace.lifetimes.made_from == 0) {
    std::destroy_at(known);
    trace.objects.vacant.push_back(std::construct_at(known));
  }
  return true;
}

// object_ends/E4. Those that the frames of one operation have made: it is over.
void DropContainers(Trace& trace, size_t from) {
  if (trace.lifetimes.watches()) return;  // DropAllGarbage does it
  bool backwards = true;
  for (bool dropped = true; dropped; backwards = !backwards) {  // what one held may be next, on either side of it
    dropped = false;
    const size_t count = trace.objects.containers.size();
    for (size_t i = from; i < count; ++i) {
      ObjectRecord*& known = trace.objects.containers[backwards ? count - 1 - (i - from) : i];
      PyObject* const object = known->pin.get();  // null: it has been dropped before
      if (object != nullptr && (Py_REFCNT(object) != 1 || !DropContainer(trace, known))) continue;
      known = nullptr;
      dropped = true;
    }
    if (!dropped) return;
    trace.objects.containers.erase(std::remove(trace.objects.containers.begin() + static_cast<std::ptrdiff_t>(from),
                                               trace.objects.containers.end(), nullptr),
                                   trace.objects.containers.end());
  }
}

}  // namespace frametap
