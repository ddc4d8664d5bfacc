// Garbage of a recording: objects that the trace has made and that only the recorder still holds.
//   W1  While objects are watched (object_ends.cc), garbage is dropped before each instruction, so that what it held is
//       counted correctly.
//   W2  A settled object cannot reach an object that is watched. The program cannot observe when it becomes garbage, so
//       it may wait. Only the objects that are not settled are looked at before each instruction. A recording is
//       linear because of it.
//   W3  What a settled object reaches is settled as well, or existed before (and the guards keep that). Where something
//       else is stored into a settled object, that is settled then, or nothing is settled any more.
// Not here: which objects are watched, and when that ends a recording (object_ends.cc).
#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "frame_eval/record/recorder.h"
#include "guards/objects/known_objects.h"
#include "guards/objects/object_end.h"
#include "guards/objects/tensor_door.h"

namespace frametap {
namespace {

constexpr size_t kFewMade = 128;        // objects that are looked at before each instruction in any case
constexpr size_t kFarthestStep = 1024;  // objects that are looked at to settle one

bool IsAtRest(PyObject* object) {
  return Recorder::IsScalar(object) || PyType_Check(object) || PyModule_Check(object) || PyCode_Check(object) ||
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
void AddHeld(PyObject* object, std::vector<PyObject*>* out) {
  if (PyFunction_Check(object)) {
    auto* const function = reinterpret_cast<PyFunctionObject*>(object);
    for (PyObject* part :
         {function->func_closure, function->func_defaults, function->func_kwdefaults, function->func_dict}) {
      if (part != nullptr) out->push_back(part);
    }
    return;
  }
  if (Py_TYPE(object)->tp_traverse == nullptr) return;
  const visitproc visit = [](PyObject* held, void* arg) {
    static_cast<std::vector<PyObject*>*>(arg)->push_back(held);
    return 0;
  };
  Py_TYPE(object)->tp_traverse(object, visit, out);
}

}  // namespace

// Returns whether the object, and all that it reaches and the trace has made, is settled now.
bool Recorder::Settle(PyObject* start) {
  if (!settles_) return false;
  std::vector<Known*> group;
  std::vector<PyObject*> todo{start};
  absl::flat_hash_set<PyObject*> met;
  absl::flat_hash_set<PyObject*> dicts;  // of instances that are in the group
  while (!todo.empty()) {
    PyObject* const object = todo.back();
    todo.pop_back();
    if (IsAtRest(object)) continue;
    if (watched_.contains(object) || IsAtWork(object)) return false;
    Known* const known = Find(object);
    if (known != nullptr && (known->settled || known->state == Known::State::kSource)) continue;
    if (!met.insert(object).second) continue;
    if (met.size() > kFarthestStep) return false;
    if (known != nullptr) {
      group.push_back(known);
      PyObject** const dict = _PyObject_GetDictPtr(object);
      if (dict != nullptr && *dict != nullptr) dicts.insert(*dict);
    } else if (!IsFixedKind(object) && !dicts.contains(object)) {
      return false;
    }
    AddHeld(object, &todo);
  }
  for (Known* known : group) known->settled = true;
  return true;
}

void Recorder::SettleMade() {
  // The youngest ones are still being filled.
  for (size_t i = 0; i + kFewMade / 4 < made_.size(); ++i) {
    Known* const known = made_[i];
    if (PyObject* const object = known->pin.get(); object != nullptr && !known->settled) Settle(object);
  }
  const auto settled = std::stable_partition(made_.begin(), made_.end(), [](Known* known) { return !known->settled; });
  settled_.insert(settled_.end(), settled, made_.end());
  made_.erase(settled, made_.end());
  settles_at_ = std::max(kFewMade, 2 * made_.size());
  if (settled_.size() < sweeps_at_) return;
  for (bool backwards = true; DropGarbage(&settled_, backwards);) backwards = !backwards;
  sweeps_at_ = std::max(kFewMade, 2 * settled_.size());
}

// All are looked at before each instruction again, until there are twice as many.
void Recorder::Unsettle() {
  if (settled_.empty()) return;
  for (Known* known : settled_) known->settled = false;
  made_.insert(made_.end(), settled_.begin(), settled_.end());
  settled_.clear();
  settles_at_ = std::max(kFewMade, 2 * made_.size());
}

// W3
void Recorder::MeetStore(PyObject* target, std::initializer_list<PyObject*> values) {
  const Known* known = IsAtRest(target) ? nullptr : Find(target);
  if (known == nullptr || !known->settled) return;
  for (PyObject* value : values) {
    if (value != nullptr && !Settle(value)) return Unsettle();
  }
}

void Recorder::MeetStores(const FrameState& f, const Event& e) {
  switch (e.op) {
    case Op::kStoreAttr:
      return MeetStore(e.in[1], {e.in[0]});
    case Op::kStoreSubscr:
      return MeetStore(e.in[1], {e.in[0], e.in[2]});
    case Op::kStoreDeref:
      return MeetStore(f.objects[e.arg], {e.in[0]});
    case Op::kListAppend:
    case Op::kSetAdd:
    case Op::kMapAdd:
    case Op::kListExtend:
    case Op::kSetUpdate:
    case Op::kDictUpdate:
    case Op::kDictMerge:
      return MeetStore(e.in[0], {e.in[1], e.n > 2 ? e.in[2] : nullptr});
    case Op::kBinary:  // in place
      return MeetStore(e.in[0], {e.in[1]});
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
      Py_ssize_t at = 0;
      PyObject *key, *value;
      while (PyDict_Next(e.in[i], &at, &key, &value)) all.push_back(value);
    } else {
      all.push_back(e.in[i]);
    }
  }
  for (PyObject* target : all) {
    for (PyObject* value : all) {
      if (value != target && !settled_.empty()) MeetStore(target, {value});
    }
  }
}

// Returns whether it was garbage, and is gone.
bool Recorder::DropIfGarbage(Known* known) {
  PyObject* const object = known != nullptr ? known->pin.get() : nullptr;
  if (object == nullptr) return true;  // DropContainers was first
  // Most objects have more references than these two; the look-up is for the others only: this comes before each
  // instruction.
  const bool may_be_saved = Py_REFCNT(object) <= 2 && IsGenerator(object);
  const auto saved = may_be_saved ? generators_.find(FrameOfGenerator(object)) : generators_.end();
  if (Py_REFCNT(object) > 1 + (saved != generators_.end())) return false;
  if (watched_.contains(object) && IsGenerator(object) && EndRunsCodeNow(object)) {
    dropped_generator_ = known->epoch;
    throw Break{Reason::finaliser_runs, "generator"};
  }
  if (saved != generators_.end()) generators_.erase(saved);
  watched_.erase(object);
  Forget(object);
  const Ref<> last = std::move(known->pin);
  return true;
}

// object_ends/E2. Returns whether an object that the recording had made has died. Its content may be next, on
//    either side of it.
bool Recorder::DropGarbage(std::vector<Known*>* objects, bool backwards) {
  std::vector<Known*>& all = *objects;
  const size_t count = all.size();
  const auto drop = [this, &all](size_t i) {
    if (DropIfGarbage(all[i])) all[i] = nullptr;
  };
  for (size_t i = 0; i < count; ++i) drop(backwards ? count - 1 - i : i);
  all.erase(std::remove(all.begin(), all.end(), nullptr), all.end());
  return all.size() != count;
}

void Recorder::DropAllGarbage() {
  for (; made_from_ < known_.size(); ++made_from_) {
    Known& known = known_[made_from_];
    if (known.state != Known::State::kSource && known.pin) made_.push_back(&known);
  }
  if (made_.size() >= std::max(kFewMade, settles_at_) && settles_) SettleMade();
  for (bool backwards = true; DropGarbage(&made_, backwards);) backwards = !backwards;
}

// Drops an object that only the recorder holds. Returns false if a variable of the entry frame has it, too.
bool Recorder::DropContainer(Known* known) {
  PyObject* const object = known->pin.get();
  if (std::find(base_cells_.begin(), base_cells_.end(), object) != base_cells_.end()) return false;
  Forget(object);
  const Ref<> last = std::move(known->pin);
  // Each call of a module makes a handful of tuples and dicts, and memory that was just used is in the caches.
  // (`made_` points to such places as well.)
  if (made_from_ == 0) {
    std::destroy_at(known);
    vacant_.push_back(std::construct_at(known));
  }
  return true;
}

// object_ends/E4. Those that the frames of one operation have made: it is over.
void Recorder::DropContainers(size_t from) {
  if (watches_ends()) return;  // DropAllGarbage does it
  bool backwards = true;
  for (bool dropped = true; dropped; backwards = !backwards) {  // what one held may be next, on either side of it
    const size_t count = containers_.size();
    for (size_t i = from; i < count; ++i) {
      Known*& known = containers_[backwards ? count - 1 - (i - from) : i];
      PyObject* const object = known->pin.get();  // null: it has been dropped before
      if (object == nullptr || (Py_REFCNT(object) == 1 && DropContainer(known))) known = nullptr;
    }
    containers_.erase(std::remove(containers_.begin() + static_cast<std::ptrdiff_t>(from), containers_.end(), nullptr),
                      containers_.end());
    dropped = containers_.size() != count;
  }
}

}  // namespace frametap
