// The recorder keeps what it knows alive. Objects whose end runs code (guards/object_end.h) are watched meanwhile, with
// all that they are reached through: before each instruction the count of each tells whether only the recorder has it
// left, and then the recording ends, so that the object ends at the instruction at which it would have.
//   E1  An object with a finaliser is never made in a graph: a replay would not make it, or make it end elsewhere.
//   E2  Objects made by the recording that nobody else has are let go, so that what they hold is counted rightly.
//   E3  The rest costs nothing while nothing is watched.
//   E4  What a call has made and nobody else has (the tuple of its `*args`, a cell, a bound method, an iterator) may hold
//       the results of layers: it is let go when the call is over, or a first call would need the memory of a training
//       step.
#include <algorithm>

#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/known_objects.h"
#include "frame_eval/recorder.h"
#include "guards/object_end.h"
#include "guards/tensor_door.h"

namespace frametap {
namespace {

constexpr size_t kFarthest = 256;  // objects looked at; what is larger is watched without a look

// Of no interest: it does not end, or nothing follows from its end.
bool NeverEnds(PyObject* object) {
  return object == nullptr || Recorder::IsScalar(object) || PyType_Check(object) || PyModule_Check(object);
}

bool IsLeaf(PyObject* object) {
  return NeverEnds(object) || PyFunction_Check(object) || PyCode_Check(object) || IsTensor(object);
}

}  // namespace

bool Recorder::HoldsAnEnd(PyObject* object) {
  absl::flat_hash_set<PyObject*> seen;
  std::vector<PyObject*> todo{object};
  while (!todo.empty()) {
    PyObject* one = todo.back();
    todo.pop_back();
    if (!seen.insert(one).second) continue;
    if (EndRunsCode(one) || seen.size() > kFarthest) return true;
    if (IsLeaf(one) || Py_TYPE(one)->tp_traverse == nullptr || !PyObject_IS_GC(one)) continue;
    const visitproc visit = [](PyObject* held, void* arg) {
      static_cast<std::vector<PyObject*>*>(arg)->push_back(held);
      return 0;
    };
    Py_TYPE(one)->tp_traverse(one, visit, &todo);
  }
  return false;
}

namespace {

// What an effect is about to remove from its place; borrowed, null if nothing, the target itself if any of its elements.
PyObject* Replaced(Effect::Kind kind, PyObject* target, const std::string& name, PyObject* key) {
  static const absl::flat_hash_set<std::string>* const kKeeping = new absl::flat_hash_set<std::string>{
      "__call__", "add", "append", "extend", "insert", "reverse", "setdefault", "sort"};
  PyObject** dict = nullptr;
  switch (kind) {
    case Effect::Kind::kSetAttr:
    case Effect::Kind::kDelAttr:
      dict = _PyObject_GetDictPtr(target);
      return dict != nullptr && *dict != nullptr ? PyDict_GetItemString(*dict, name.c_str()) : nullptr;
    case Effect::Kind::kSetGlobal:
      return PyDict_GetItemString(target, name.c_str());
    case Effect::Kind::kSetCell:
      return PyCell_GET(target);
    case Effect::Kind::kSetItem:
    case Effect::Kind::kDelItem:
      if (PyDict_Check(target) && Recorder::IsScalar(key)) return PyDict_GetItemWithError(target, key);
      if (PyList_Check(target) && PyLong_CheckExact(key)) {
        const Py_ssize_t index = PyLong_AsSsize_t(key), size = PyList_GET_SIZE(target);
        return index < -size || index >= size ? nullptr : PyList_GET_ITEM(target, index < 0 ? index + size : index);
      }
      return target;
    default:
      return kKeeping->contains(name) ? nullptr : target;
  }
}

}  // namespace

void Recorder::Watch(PyObject* object) {
  Py_ssize_t count = 0;
  for (const PendingEffect& effect : effects_) {
    count += effect.target.get() == object;
    for (const Ref<>& value : effect.values) count += value.get() == object;
  }
  watched_[object] = count;
  for (FrameState* f : frames_) f->observed = true;
}

Py_ssize_t Recorder::CountOf(PyObject* watched) {
  const Known* known = Find(watched);
  Py_ssize_t kept = 0;
  for (const EntryState& entry : entry_) {
    for (const Ref<>& object : entry.objects) kept += object.get() == watched;
  }
  kept += IsGenerator(watched) && generators_.contains(FrameOfGenerator(watched));
  return kept + watched_[watched] + guards_.CountOf(watched) + (known != nullptr && known->pin) +
         (undo_ != nullptr ? undo_->CountOf(watched) : 0);
}

void Recorder::WatchSource(SourceId id) {
  for (; id.valid(); id = guards_.parent(id)) {
    PyObject* object = guards_.seen(id);
    if (NeverEnds(object)) continue;
    if (watched_.contains(object)) break;
    Watch(object);
  }
}

void Recorder::WatchMade(PyObject* object) {
  if (!IsGenerator(object)) throw Break{Reason::finaliser_made, Py_TYPE(object)->tp_name};
  if (EndRunsCode(object)) Watch(object);
}

void Recorder::WatchHolder(PyObject* object) {
  if (!NeverEnds(object) && !watched_.contains(object) && HoldsAnEnd(object)) {
    const SourceId source = SourceOf(object);
    if (source.valid()) WatchSource(source);
  }
}

void Recorder::WatchReplaced(Effect::Kind kind, PyObject* target, const std::string& name, PyObject* key) {
  PyObject* old = Replaced(kind, target, name, key);
  if (old != target) return WatchHolder(old);
  if (PyList_Check(target)) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(target); ++i) WatchHolder(PyList_GET_ITEM(target, i));
  } else if (PyDict_Check(target)) {
    Py_ssize_t at = 0;
    PyObject *item_key, *value;
    while (PyDict_Next(target, &at, &item_key, &value)) WatchHolder(value);
  }
}

// E2. Has anything gone that the recording had made?
bool Recorder::DropGarbage() {
  for (; made_from_ < known_.size(); ++made_from_) {
    Known& known = known_[made_from_];
    if (known.state != Known::State::kSource && known.pin) made_.push_back(&known);
  }
  const size_t count = made_.size();
  for (size_t i = 0; i < made_.size();) {
    PyObject* object = made_[i]->pin.get();
    if (object == nullptr) {  // DropContainers was first
      made_[i] = made_.back();
      made_.pop_back();
      continue;
    }
    // Most objects have more references than these two; the look-up is for the others only: this comes before each
    // instruction.
    const bool may_be_saved = Py_REFCNT(object) <= 2 && IsGenerator(object);
    const auto saved = may_be_saved ? generators_.find(FrameOfGenerator(object)) : generators_.end();
    if (Py_REFCNT(object) > 1 + (saved != generators_.end())) {
      ++i;
      continue;
    }
    if (watched_.contains(object) && IsGenerator(object) && EndRunsCodeNow(object)) {
      dropped_generator_ = made_[i]->epoch;
      throw Break{Reason::finaliser_runs, "generator"};
    }
    if (saved != generators_.end()) generators_.erase(saved);
    watched_.erase(object);
    Forget(object);
    Ref<> last = std::move(made_[i]->pin);
    made_[i] = made_.back();
    made_.pop_back();
  }
  return made_.size() != count;
}

// E4. Those that the frames of one operation have made: it is over.
void Recorder::DropContainers(size_t from) {
  if (watches_ends()) return;            // DropGarbage does it
  for (bool dropped = true; dropped;) {  // what one held may be next
    dropped = false;
    for (size_t i = containers_.size(); i-- > from;) {
      Known& known = *containers_[i];
      PyObject* object = known.pin.get();
      if (object != nullptr && Py_REFCNT(object) > 1) continue;
      if (std::find(base_cells_.begin(), base_cells_.end(), object) != base_cells_.end()) continue;
      if (object != nullptr) {
        Forget(object);
        const Ref<> last = std::move(known.pin);
        // Each call of a module makes a handful of tuples and dicts, and memory that was just used is in the caches.
        // (`made_` points to such places as well.)
        if (made_from_ == 0) {
          std::destroy_at(&known);
          vacant_.push_back(std::construct_at(&known));
        }
        dropped = true;
      }
      containers_[i] = containers_.back();
      containers_.pop_back();
    }
  }
}

void Recorder::LetGo() {
  while (DropGarbage()) {
  }
  constexpr Py_ssize_t kMany = 16;
  for (const auto& [object, count] : watched_) {
    if (Py_REFCNT(object) > kMany) continue;
    // DropGarbage looks at generators that the trace has made.
    const Known* known = IsGenerator(object) ? Find(object) : nullptr;
    if (known != nullptr && known->state != Known::State::kSource) continue;
    if (Py_REFCNT(object) > CountOf(object)) continue;
    throw Break{Reason::finaliser_runs, Py_TYPE(object)->tp_name};
  }
}

}  // namespace frametap
