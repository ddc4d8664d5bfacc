#include "frame_eval/record/objects/object_ends.h"

#include <algorithm>
#include <iterator>

#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/record/frames.h"
#include "frame_eval/record/objects/garbage.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/objects/quiet.h"
#include "frame_eval/record/objects/variables.h"
#include "guards/cpython/deque_view.h"
#include "guards/objects/dict_items.h"
#include "guards/objects/object_end.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/well_known_objects.h"
#include "guards/throw_if_null.h"
#include "ir/segment/frame_slot.h"

namespace frametap {

static bool IsHeldByFrame(const Trace& trace, SourceId id);
static void WatchFrom(Trace& trace, PyObject* object, Py_ssize_t in_effects);
namespace {

constexpr Py_ssize_t kMany = 16;   // more references to one object than a recording holds
constexpr size_t kFarthest = 256;  // objects looked at

// Ignored: it does not die, or nothing follows from its end.
bool NeverEnds(PyObject* object) {
  return object == nullptr || IsScalar(object) || PyType_Check(object) || PyModule_Check(object);
}

bool IsLeaf(PyObject* object) { return NeverEnds(object) || PyFunction_Check(object) || PyCode_Check(object); }

}  // namespace

bool ReachesFinalizer(PyObject* object, bool if_large) {
  absl::flat_hash_set<PyObject*> seen;
  std::vector<PyObject*> todo{object};
  while (!todo.empty()) {
    PyObject* one = todo.back();
    todo.pop_back();
    if (!seen.insert(one).second) continue;
    if (EndRunsCode(one)) return true;
    if (seen.size() > kFarthest) return if_large;
    if (!IsLeaf(one)) AddHeld(one, &todo);
  }
  return false;
}

namespace {

// Returns whether code runs when the only reference to the object is given up. The objects that die with it have one each,
// so this is a tree, and CPython follows it as well.
bool LastReferenceRunsCode(PyObject* object) {
  std::vector<PyObject*> todo{object};
  while (!todo.empty()) {
    PyObject* one = todo.back();
    todo.pop_back();
    const bool dies = one == object || (Py_REFCNT(one) == 1 && !NeverEnds(one));
    if (!dies) continue;
    if (EndRunsCode(one)) return true;
    AddHeld(one, &todo);
  }
  return false;
}

// The object that an effect is about to remove from its place. Borrowed, null if nothing, the target itself if any of
// its elements.
PyObject* Replaced(Effect::Kind kind, PyObject* target, const std::string& name, PyObject* key) {
  static const absl::flat_hash_set<std::string>* const kKeeping = new absl::flat_hash_set<std::string>{
      "__call__", "add", "append", "extend", "insert", "reverse", "setdefault", "sort"};
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
      if (IsTensor(target) && name == "data") return nullptr;  // memory, of which no end runs code
      if (IsTensor(target) && member != nullptr && Py_TYPE(member) == &PyGetSetDescr_Type) {  // its grad (StoreGrad)
        const Ref<> old = Must(PyObject_GenericGetAttr(target, attribute.get()));
        return old.get();  // the tensor holds it
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
      if (PyDict_Check(target) && IsScalar(key)) return ItemQuietly(target, key);
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

Py_ssize_t CountInEffects(const Trace& trace, PyObject* object) {
  Py_ssize_t count = 0;
  for (const PendingEffect& effect : trace.effects.pending) {
    count += effect.target.get() == object;
    for (const Ref<>& value : effect.values) count += value.get() == object;
  }
  return count;
}

void Watch(Trace& trace, PyObject* object) {
  if (trace.lifetimes.watched.contains(object)) return;
  WatchFrom(trace, object, CountInEffects(trace, object));
  Unsettle(trace);  // one of them may hold it
}

static void WatchFrom(Trace& trace, PyObject* object, Py_ssize_t in_effects) {
  trace.lifetimes.watched.emplace(object, in_effects);
  for (FrameState* f : trace.frames.inlined) f->observed = true;
}

void WatchAll(Trace& trace) {
  if (std::exchange(trace.lifetimes.watches_all, true)) return;
  for (PyObject* object : trace.lifetimes.ending) Watch(trace, object);
}

Py_ssize_t CountOf(Trace& trace, PyObject* object, Py_ssize_t in_effects) {
  const ObjectRecord* known = trace.objects.Find(object);
  Py_ssize_t kept = 0;
  for (const FrameAtEntry& entry : trace.frames.at_entry) {
    for (const Ref<>& one : entry.objects) kept += one.get() == object;
  }
  kept += IsGenerator(object) && trace.iteration.generators.contains(FrameOfGenerator(object));
  return kept + in_effects + trace.guards.CountOf(object) + (known != nullptr && known->pin) +
         (trace.effects.undo != nullptr ? trace.effects.undo->CountOf(object) : 0);
}

// E5, for the last step. An operation that takes objects from attributes, containers, globals and cells that existed
// before is an effect.
static bool IsHeldByPath(const Trace& trace, SourceId id, PyObject* object) {
  if (trace.lifetimes.watches_all || trace.lifetimes.released.contains(object)) return false;
  PyCodeObject* const code = trace.frames.base().code;
  switch (trace.guards.accessor(id)) {
    case Accessor::kAttr:
    case Accessor::kModuleAttr:
    case Accessor::kItem:
    case Accessor::kKey:
    case Accessor::kDictKeyAt:
    case Accessor::kGlobal:
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
      if (!IsHeldByFrame(trace, id)) return false;
      const Source root = trace.guards.Describe(id);
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

static bool IsHeldByFrame(const Trace& trace, SourceId id) {
  const Accessor root = trace.guards.accessor(id);
  const bool is_of_frame = root == Accessor::kLocal || root == Accessor::kCell || root == Accessor::kFunction;
  return is_of_frame && FrameOf(trace.guards.Describe(id).index) == trace.frames.level();
}

bool IsHeldByItsPath(Trace& trace, PyObject* object) {
  const SourceId source = SourceOf(trace, object);
  for (SourceId id = source; id.valid(); id = trace.guards.parent(id)) {
    PyObject* const step = trace.guards.seen(id);
    if (!NeverEnds(step) && !IsHeldByPath(trace, id, step)) return false;
  }
  return source.valid();
}

void NoteEnd(Trace& trace, SourceId id) {
  for (; id.valid(); id = trace.guards.parent(id)) {
    PyObject* object = trace.guards.seen(id);
    if (NeverEnds(object)) continue;
    if (!trace.lifetimes.ending.insert(object).second) break;
    if (IsHeldByFrame(trace, id)) trace.lifetimes.of_base_frame.push_back(object);
    if (!IsHeldByPath(trace, id, object)) Watch(trace, object);
  }
}

void WatchMade(Trace& trace, PyObject* object) {
  if (!IsGenerator(object)) throw Break{Reason::finaliser_made, Py_TYPE(object)->tp_name};
  // It is new: nothing that the trace has done holds it.
  if (EndRunsCode(object) && !trace.lifetimes.watched.contains(object)) WatchFrom(trace, object, 0);
}

// Something else holds it no more, or will not in a moment.
static void NoteRelease(Trace& trace, PyObject* object) {
  constexpr size_t kMost = 4096;
  if (IsScalar(object)) return;
  if (trace.lifetimes.ending.contains(object)) return Watch(trace, object);
  const ObjectRecord* const known = trace.objects.Find(object);
  if (known != nullptr && known->state != ObjectRecord::State::kSource) return;  // no path leads through it
  if (NeverEnds(object) || trace.lifetimes.released.size() > kMost) return WatchAll(trace);
  if (!trace.lifetimes.released.insert(object).second) return;
  // Steps of a path pass over such: the dicts of modules and instances, closures, defaults.
  if (PyDict_Check(object)) {
    for (const auto [key, value] : DictItems(object)) {
      NoteRelease(trace, key);
      NoteRelease(trace, value);
    }
  } else if (PyTuple_Check(object)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i) NoteRelease(trace, PyTuple_GET_ITEM(object, i));
  } else if (PyCell_Check(object) && PyCell_GET(object) != nullptr) {
    NoteRelease(trace, PyCell_GET(object));
  }
}

void MeetRelease(Trace& trace, PyObject* object) {
  NoteRelease(trace, object);
  if (NeverEnds(object) || trace.lifetimes.ending.contains(object) || !ReachesFinalizer(object)) return;
  const SourceId source = SourceOf(trace, object);
  if (source.valid()) return NoteEnd(trace, source);
  if (trace.guards.CountOf(object) > 0) return Watch(trace, object);  // only passed by
  const Py_ssize_t to_undo = trace.effects.undo != nullptr ? trace.effects.undo->CountOf(object) : 0;
  if (Py_REFCNT(object) > 1 + to_undo) return;
  if (LastReferenceRunsCode(object)) throw Break{Reason::finaliser_runs, Py_TYPE(object)->tp_name};
  WatchAll(trace);  // others hold a part of it too
}

void MeetEffect(Trace& trace, Effect::Kind kind, PyObject* target, const std::string& name, PyObject* key) {
  if (IsDeque(target)) {  // one that is full lets go of an item
    for (const Py_ssize_t i : {Py_ssize_t{0}, DequeLength(target) - 1}) {
      if (PyObject* item = DequeItem(target, i)) MeetRelease(trace, item);
    }
    return;
  }
  PyObject* const old = Replaced(kind, target, name, key);
  if (old == nullptr) return;
  if (old != target) return MeetRelease(trace, old);
  if (PyList_Check(target)) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(target); ++i) MeetRelease(trace, PyList_GET_ITEM(target, i));
  } else if (PyDict_Check(target)) {
    for (const auto [item_key, value] : DictItems(target)) {
      MeetRelease(trace, item_key);
      MeetRelease(trace, value);
    }
  }
}

// A frame outside of the recording: a finaliser's, a callback's, a signal handler's. Its changes are not effects. If
// it is a library's part of an operation, the operation has reported the changes.
void MeetUnrecorded(Trace& trace, const FrameState& f) {
  const auto is_globals = [&f](const PyObject* part) {
    return f.function != nullptr && f.function->func_globals == part;
  };
  const auto& parts = Objects().operation_parts;
  const bool is_part =
      NoteOf(trace.frames.innermost()).op.in_event && std::any_of(std::begin(parts), std::end(parts), is_globals);
  if (!is_part || IsFinaliser(trace, f)) WatchAll(trace);
}

void LetGo(Trace& trace) {
  DropAllGarbage(trace);
  for (const auto& [object, count] : trace.lifetimes.watched) {
    if (Py_REFCNT(object) > kMany) continue;
    // DropAllGarbage looks at generators that the trace has made.
    const ObjectRecord* known = IsGenerator(object) ? trace.objects.Find(object) : nullptr;
    if (known != nullptr && known->state != ObjectRecord::State::kSource) continue;
    if (Py_REFCNT(object) > CountOf(trace, object, count)) continue;
    throw Break{Reason::finaliser_runs, Py_TYPE(object)->tp_name};
  }
}

void MeetReturn(Trace& trace, const FrameState& f) {
  if (trace.lifetimes.ending.size() < 2 || !trace.frames.is_base(f) || trace.frames.inlined.size() > 1) return;
  if (!InstructionAt(f.code, f.offset).is_return) return;
  const auto& entry = trace.frames.bound_at_entry;
  for (int i = 0; i < f.nlocalsplus; ++i) {
    PyObject* const object = f.objects[i];
    if (NeverEnds(object) || f.shadows[i].kind == Shadow::Kind::kUnread) continue;
    const bool stays = std::any_of(entry.begin(), entry.end(), [&](const auto& one) {
      return one.first == i && one.second.valid() && trace.guards.seen(one.second) == object;
    });
    if (!stays && ReachesFinalizer(object)) throw Break{Reason::finaliser_runs, Py_TYPE(object)->tp_name};
  }
}

// Self-check of E5: what is not watched is held by somebody else.
std::string FaultOfEnds(Trace& trace) {
  if (trace.aten.pending) return "";
  for (PyObject* object : trace.lifetimes.ending) {
    if (trace.lifetimes.watched.contains(object) || Py_REFCNT(object) > kMany) continue;
    if (Py_REFCNT(object) > CountOf(trace, object, CountInEffects(trace, object))) continue;
    return std::string("nobody else holds an object of type ") + Py_TYPE(object)->tp_name;
  }
  return "";
}

}  // namespace frametap
