// The recorder keeps its known objects alive. Objects whose end runs code (guards/objects/object_end.h) are noted meanwhile,
// with all objects on the path to them. Objects that may lose their owner are watched. Before each instruction, the
// reference count shows whether only the recorder is left. Then the recording ends, so that the object dies at the
// same instruction as in plain Python.
//   E1  An object with a finaliser is never made in a graph: a replay would not make it, or make it end elsewhere.
//   E2  Objects made by the recording that have no other owner are released, so that their content is counted rightly.
//   E3  The rest costs nothing while nothing is watched.
//   E4  An object that a call has made and that has no other owner may hold the results of layers. Examples are the
//       tuple of its `*args`, a cell, a bound method, and an iterator. It is released when the call is over. A first
//       call would need the memory of a training step otherwise.
//   E5  A noted object lives while the path to it does: each object is held by the one before, which is noted as well.
//       It is watched from the moment when that may cease. An effect takes it from any place; the frame releases a
//       local. Code that is not recorded runs. Or the last step is one that breaks without an effect (IsHeldByPath).
#include <algorithm>
#include <iterator>

#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/record/objects/quiet.h"
#include "frame_eval/record/recorder.h"
#include "guards/cpython/deque_view.h"
#include "guards/must.h"
#include "guards/objects/known_objects.h"
#include "guards/objects/object_end.h"
#include "guards/objects/tensor_door.h"
#include "ir/segment/frame_slot.h"

namespace frametap {
namespace {

constexpr Py_ssize_t kMany = 16;   // more references to one object than a recording holds
constexpr size_t kFarthest = 256;  // objects looked at

// Ignored: it does not die, or nothing follows from its end.
bool NeverEnds(PyObject* object) {
  return object == nullptr || Recorder::IsScalar(object) || PyType_Check(object) || PyModule_Check(object);
}

bool IsLeaf(PyObject* object) {
  return NeverEnds(object) || PyFunction_Check(object) || PyCode_Check(object) || IsTensor(object);
}

}  // namespace

bool Recorder::HoldsAnEnd(PyObject* object, bool if_large) {
  absl::flat_hash_set<PyObject*> seen;
  std::vector<PyObject*> todo{object};
  while (!todo.empty()) {
    PyObject* one = todo.back();
    todo.pop_back();
    if (!seen.insert(one).second) continue;
    if (EndRunsCode(one)) return true;
    if (seen.size() > kFarthest) return if_large;
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

// The object that an effect is about to remove from its place. Borrowed, null if nothing, the target itself if any of
// its elements.
PyObject* Replaced(Effect::Kind kind, PyObject* target, const std::string& name, PyObject* key) {
  static const absl::flat_hash_set<std::string>* const kKeeping = new absl::flat_hash_set<std::string>{
      "__call__", "add", "append", "extend", "insert", "reverse", "setdefault", "sort"};
  // Not by PyDict_GetItemString: where there is no memory for the key, that finds nothing.
  const auto key_of = [](const std::string& text) { return Must(PyUnicode_InternFromString(text.c_str())); };
  switch (kind) {
    case Effect::Kind::kSetAttr:
    case Effect::Kind::kDelAttr: {
      const Ref<> attribute = key_of(name);
      PyObject* const member = _PyType_Lookup(Py_TYPE(target), attribute.get());
      if (member != nullptr && Py_TYPE(member) == &PyMemberDescr_Type) {
        const Ref<> old = Ref<>::Steal(Py_TYPE(member)->tp_descr_get(member, target, nullptr));
        PyErr_Clear();                                                 // the slot is empty
        return old && Py_REFCNT(old.get()) > 1 ? old.get() : nullptr;  // a number of C's is made here
      }
      PyObject** const dict = _PyObject_GetDictPtr(target);
      return dict != nullptr && *dict != nullptr ? ItemQuietly(*dict, attribute.get()) : nullptr;
    }
    case Effect::Kind::kSetGlobal:
      return ItemQuietly(target, key_of(name).get());
    case Effect::Kind::kSetCell:
      return PyCell_GET(target);
    case Effect::Kind::kSetItem:
    case Effect::Kind::kDelItem:
      if (PyDict_Check(target) && Recorder::IsScalar(key)) return ItemQuietly(target, key);
      if (PyList_Check(target) && PyLong_CheckExact(key)) {
        const Py_ssize_t index = PyLong_AsSsize_t(key), size = PyList_GET_SIZE(target);
        if (index == -1 && PyErr_Occurred() != nullptr) {
          PyErr_Clear();  // too large: the store raises
          return nullptr;
        }
        return index < -size || index >= size ? nullptr : PyList_GET_ITEM(target, index < 0 ? index + size : index);
      }
      return target;
    default:
      return kKeeping->contains(name) ? nullptr : target;
  }
}

}  // namespace

Py_ssize_t Recorder::CountInEffects(PyObject* object) const {
  Py_ssize_t count = 0;
  for (const PendingEffect& effect : effects_) {
    count += effect.target.get() == object;
    for (const Ref<>& value : effect.values) count += value.get() == object;
  }
  return count;
}

void Recorder::Watch(PyObject* object) {
  if (watched_.contains(object)) return;
  WatchFrom(object, CountInEffects(object));
  Unsettle();  // one of them may hold it
}

void Recorder::WatchFrom(PyObject* object, Py_ssize_t in_effects) {
  watched_.emplace(object, in_effects);
  for (FrameState* f : frames_) f->observed = true;
}

void Recorder::WatchAll() {
  if (std::exchange(watches_all_, true)) return;
  for (PyObject* object : ending_) Watch(object);
}

Py_ssize_t Recorder::CountOf(PyObject* object, Py_ssize_t in_effects) {
  const Known* known = Find(object);
  Py_ssize_t kept = 0;
  for (const EntryState& entry : entry_) {
    for (const Ref<>& one : entry.objects) kept += one.get() == object;
  }
  kept += IsGenerator(object) && generators_.contains(FrameOfGenerator(object));
  return kept + in_effects + guards_.CountOf(object) + (known != nullptr && known->pin) +
         (undo_ != nullptr ? undo_->CountOf(object) : 0);
}

// E5, for the last step. An operation that takes objects from attributes, containers, globals and cells that existed
// before is an effect.
bool Recorder::IsHeldByPath(SourceId id, PyObject* object) const {
  if (watches_all_ || released_.contains(object)) return false;
  PyCodeObject* const code = frames_.front()->code;
  switch (guards_.accessor(id)) {
    case Accessor::kAttr:
    case Accessor::kModuleAttr:
    case Accessor::kItem:
    case Accessor::kKey:
    case Accessor::kDictKeyAt:
    case Accessor::kGlobal:
    case Accessor::kBuiltin:
    case Accessor::kTypeOf:
    case Accessor::kDict:
    case Accessor::kClosure:
    case Accessor::kDefault:
    case Accessor::kKwDefault:
    case Accessor::kSelf:
      return true;
    case Accessor::kPinned:
      return IsDefinedOnce(object) || (PyDict_CheckExact(object) && ModuleOf(object) != nullptr);
    case Accessor::kLocal:
    case Accessor::kCell:
    case Accessor::kFunction: {
      if (!IsHeldByFrame(id)) return false;
      const Source root = guards_.Describe(id);
      if (root.accessor == Accessor::kFunction) return true;
      const int slot = SlotOf(root.index);
      const SlotKind kind = KindOfSlot(code, slot);
      if (root.accessor == Accessor::kCell) return kind == SlotKind::kFree;
      return kind == SlotKind::kLocal && !AssignsLocal(code, slot);
    }
    default:
      return false;
  }
}

bool Recorder::IsHeldByFrame(SourceId id) const {
  const Accessor root = guards_.accessor(id);
  const bool is_of_frame = root == Accessor::kLocal || root == Accessor::kCell || root == Accessor::kFunction;
  return is_of_frame && FrameOf(guards_.Describe(id).index) == level();
}

bool Recorder::IsHeldByItsPath(PyObject* object) {
  const SourceId source = SourceOf(object);
  for (SourceId id = source; id.valid(); id = guards_.parent(id)) {
    PyObject* const step = guards_.seen(id);
    if (!NeverEnds(step) && !IsHeldByPath(id, step)) return false;
  }
  return source.valid();
}

void Recorder::NoteEnd(SourceId id) {
  for (; id.valid(); id = guards_.parent(id)) {
    PyObject* object = guards_.seen(id);
    if (NeverEnds(object)) continue;
    if (!ending_.insert(object).second) break;
    if (IsHeldByFrame(id)) frame_ends_.push_back(object);
    if (!IsHeldByPath(id, object)) Watch(object);
  }
}

void Recorder::WatchMade(PyObject* object) {
  if (!IsGenerator(object)) throw Break{Reason::finaliser_made, Py_TYPE(object)->tp_name};
  // It is new: nothing that the trace has done holds it.
  if (EndRunsCode(object) && !watched_.contains(object)) WatchFrom(object, 0);
}

// Something else holds it no more, or will not in a moment.
void Recorder::NoteRelease(PyObject* object) {
  constexpr size_t kMost = 4096;
  if (IsScalar(object)) return;
  if (ending_.contains(object)) return Watch(object);
  const Known* const known = Find(object);
  if (known != nullptr && known->state != Known::State::kSource) return;  // no path leads through it
  if (NeverEnds(object) || released_.size() > kMost) return WatchAll();
  if (!released_.insert(object).second) return;
  // Steps of a path pass over such: the dicts of modules and instances, closures, defaults.
  if (PyDict_Check(object)) {
    Py_ssize_t at = 0;
    PyObject *key, *value;
    while (PyDict_Next(object, &at, &key, &value)) {
      NoteRelease(key);
      NoteRelease(value);
    }
  } else if (PyTuple_Check(object)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i) NoteRelease(PyTuple_GET_ITEM(object, i));
  } else if (PyCell_Check(object) && PyCell_GET(object) != nullptr) {
    NoteRelease(PyCell_GET(object));
  }
}

void Recorder::MeetRelease(PyObject* object) {
  NoteRelease(object);
  if (NeverEnds(object) || ending_.contains(object) || !HoldsAnEnd(object)) return;
  const SourceId source = SourceOf(object);
  if (source.valid()) return NoteEnd(source);
  if (guards_.CountOf(object) > 0) return Watch(object);  // only passed by
  if (Py_REFCNT(object) == 1) WatchAll();                 // the code that runs now may be in C
}

void Recorder::MeetEffect(Effect::Kind kind, PyObject* target, const std::string& name, PyObject* key) {
  if (IsDeque(target)) {  // one that is full lets go of an item
    for (const Py_ssize_t i : {Py_ssize_t{0}, DequeLength(target) - 1}) {
      if (PyObject* item = DequeItem(target, i)) MeetRelease(item);
    }
    return;
  }
  PyObject* const old = Replaced(kind, target, name, key);
  if (old == nullptr) return;
  if (old != target) return MeetRelease(old);
  if (PyList_Check(target)) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(target); ++i) MeetRelease(PyList_GET_ITEM(target, i));
  } else if (PyDict_Check(target)) {
    Py_ssize_t at = 0;
    PyObject *item_key, *value;
    while (PyDict_Next(target, &at, &item_key, &value)) {
      MeetRelease(item_key);
      MeetRelease(value);
    }
  }
}

// A frame outside of the recording: a finaliser's, a callback's, a signal handler's. Its changes are not effects. If
// it is a library's part of an operation, the operation has reported the changes.
void Recorder::MeetUnrecorded(const FrameState& f) {
  const auto is_globals = [&f](const PyObject* part) {
    return f.function != nullptr && f.function->func_globals == part;
  };
  const auto& parts = Objects().operation_parts;
  const bool is_part = NoteOf(*frames_.back()).in_event && std::any_of(std::begin(parts), std::end(parts), is_globals);
  if (!is_part || IsFinaliser(f)) WatchAll();
}

void Recorder::LetGo() {
  DropAllGarbage();
  for (const auto& [object, count] : watched_) {
    if (Py_REFCNT(object) > kMany) continue;
    // DropAllGarbage looks at generators that the trace has made.
    const Known* known = IsGenerator(object) ? Find(object) : nullptr;
    if (known != nullptr && known->state != Known::State::kSource) continue;
    if (Py_REFCNT(object) > CountOf(object, count)) continue;
    throw Break{Reason::finaliser_runs, Py_TYPE(object)->tp_name};
  }
}

// Self-check of E5: what is not watched is held by somebody else.
std::string Recorder::FaultOfEnds() {
  if (aten_.pending) return "";
  for (PyObject* object : ending_) {
    if (watched_.contains(object) || Py_REFCNT(object) > kMany) continue;
    if (Py_REFCNT(object) > CountOf(object, CountInEffects(object))) continue;
    return std::string("nobody else holds an object of type ") + Py_TYPE(object)->tp_name;
  }
  return "";
}

}  // namespace frametap
