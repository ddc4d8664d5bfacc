#include "frame_eval/record/semantics/iterators.h"

#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/numbers/sequences.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/objects/object_ends.h"
#include "frame_eval/record/shared_breaks.h"
#include "guards/cpython/iterator_view.h"
#include "guards/throw_if_null.h"

namespace frametap {

// How many items an operation has taken from iterators so far.
using TakesNow = absl::flat_hash_map<PyObject*, int64_t>;

static bool IsWrittenDict(const Trace& trace, PyObject* dict);
static bool UpcomingOfAll(Trace& trace, PyObject* iterators, SourceId source, TakesNow* now, TakenItem* taken);
static bool UpcomingOfOne(Trace& trace, PyObject* iterator, SourceId source, const MetIterator& note, int64_t ahead,
                          TakenItem* taken);
static Shadow UpcomingCount(Trace& trace, PyObject* iterator, SourceId source, int64_t skip, int64_t ahead);
namespace {

constexpr int kDeepest = 8;  // of iterators over iterators

Break Unknown() { return Break{Reason::unknown_operation, "an iterator that existed before"}; }

// The iterators that this one takes from are in a tuple; null: there is none.
PyObject* PartsOf(PyObject* iterator, IteratorKind kind) {
  return kind == IteratorKind::kEnumerate ? nullptr : IteratedOver(iterator, kind == IteratorKind::kMap ? 1 : 0);
}

}  // namespace

// The items left in it at the entry, before anything is taken.
void MeetIterator(Trace& trace, PyObject* iterator, SourceId source, int depth) {
  const IteratorKind kind = KindOfIterator(iterator);
  if (kind == IteratorKind::kNone || depth > kDeepest) return;
  auto [it, is_new] = trace.iteration.met.try_emplace(iterator);
  if (!is_new) return;
  it->second.source = source;
  if (!TakesFromIterators(kind)) {
    const int64_t left = ItemsLeft(iterator);
    PyObject* over = IteratedOver(iterator, 0);
    const ObjectRecord* content = over == nullptr ? nullptr : trace.objects.Find(over);
    it->second.lost = left < 0 || (content != nullptr && content->mutated);
    it->second.was_at_end = left == 0;
    it->second.left = trace.guards.Child(source, Accessor::kLeft, 0, nullptr, nullptr);
    return;
  }
  PyObject* parts = PartsOf(iterator, kind);
  if (parts == nullptr) {
    PyObject* part = IteratedOver(iterator, 0);
    return MeetIterator(trace, part, trace.guards.Child(source, Accessor::kOver, 0, nullptr, part), depth + 1);
  }
  const SourceId tuple =
      trace.guards.Child(source, Accessor::kOver, kind == IteratorKind::kMap ? 1 : 0, nullptr, parts);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parts); ++i) {
    PyObject* part = PyTuple_GET_ITEM(parts, i);
    MeetIterator(trace, part, trace.guards.Child(tuple, Accessor::kItem, i, nullptr, part), depth + 1);
  }
}

bool IsMetIterator(const Trace& trace, PyObject* object) { return trace.iteration.met.contains(object); }

// Its content has changed since the entry, and the old content is unknown.
void RefuseWrittenDict(const Trace& trace, PyObject* dict) {
  if (!trace.effects.pending.empty() && IsWrittenDict(trace, dict)) throw DictOfWrittenObject();
}

// Something of the object that the dict belongs to was written, or of the module.
static bool IsWrittenDict(const Trace& trace, PyObject* dict) {
  for (const PendingEffect& effect : trace.effects.pending) {
    PyObject* target = effect.target.get();
    if (effect.kind == Effect::Kind::kSetGlobal && target == dict) return true;
    if (effect.kind != Effect::Kind::kSetAttr && effect.kind != Effect::Kind::kDelAttr) continue;
    if (InstanceDict(target) == dict) return true;
  }
  return false;
}

// The next item, if `now` is the number that the operation at work has already taken. Returns false at the end.
// `source` leads to the iterator.
static bool Upcoming(Trace& trace, PyObject* iterator, SourceId source, TakesNow* now, TakenItem* taken) {
  const IteratorKind kind = KindOfIterator(iterator);
  const auto met = trace.iteration.met.find(iterator);
  if (met == trace.iteration.met.end() || met->second.lost || kind == IteratorKind::kMap) throw Unknown();
  const MetIterator note = met->second;
  FromSource(trace, source, iterator, false);
  FromSource(trace, note.source, iterator, false);
  GuardTypeOrIdentity(trace, iterator);
  const ObjectRecord* known = trace.objects.Find(iterator);
  if (known->state != ObjectRecord::State::kSource) throw Unknown();
  if (!known->mutated) trace.objects.mutated_sources.push_back(iterator);
  MarkMutated(trace, iterator);
  source = known->source;
  const int64_t ahead = (*now)[iterator];
  if (!TakesFromIterators(kind)) {
    ++(*now)[iterator];
    return UpcomingOfOne(trace, iterator, source, note, ahead, taken);
  }
  PyObject* over = IteratedOver(iterator, 0);
  const SourceId part = trace.guards.Child(source, Accessor::kOver, 0, nullptr, over);
  taken->is_tuple = true;
  if (kind == IteratorKind::kZip) return UpcomingOfAll(trace, over, part, now, taken);
  taken->parts.resize(2);
  if (!Upcoming(trace, over, part, now, &taken->parts[1])) return false;
  ++(*now)[iterator];
  taken->parts[0].shadow = UpcomingCount(trace, iterator, source, note.taken + ahead, ahead);
  return true;
}

static bool UpcomingOfAll(Trace& trace, PyObject* iterators, SourceId source, TakesNow* now, TakenItem* taken) {
  FromSource(trace, source, iterators, false);
  AdoptElements(trace, iterators);
  const Py_ssize_t n = PyTuple_GET_SIZE(iterators);
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* part = PyTuple_GET_ITEM(iterators, i);
    const SourceId at = trace.guards.Child(source, Accessor::kItem, i, nullptr, part);
    if (!Upcoming(trace, part, at, now, &taken->parts.emplace_back())) return false;
  }
  return n > 0;
}

static bool UpcomingOfOne(Trace& trace, PyObject* iterator, SourceId source, const MetIterator& note, int64_t ahead,
                          TakenItem* taken) {
  const IteratorKind kind = KindOfIterator(iterator);
  const int64_t skip = note.taken + ahead;
  const int64_t left = ItemsLeft(iterator);
  PyObject* over = IteratedOver(iterator, 0);
  if (left < 0) throw Unknown();
  const ObjectRecord* content = over == nullptr ? nullptr : trace.objects.Find(over);
  const bool is_changed = content != nullptr && content->mutated;
  if (is_changed && (PyDict_Check(over) || note.was_at_end)) throw Unknown();
  if (is_changed || left <= ahead || kind == IteratorKind::kText) {
    trace.guards.Value(note.left, trace.frames.Here());
  } else {
    trace.guards.Relation(note.left, Py_GT, Must(PyLong_FromLongLong(skip)).get(), true, trace.frames.Here());
  }
  if (left <= ahead) {
    if (over != nullptr) MeetRelease(trace, over);  // by the iterator
    return false;
  }
  if (kind == IteratorKind::kRange) {
    taken->shadow = UpcomingCount(trace, iterator, source, skip, ahead);
    return true;
  }
  const Shadow shadow = FromSource(trace, trace.guards.Child(source, Accessor::kOver, 0, nullptr, over), over, false);
  if (kind == IteratorKind::kText) {
    Specialize(trace, over, shadow);
    return true;
  }
  GuardTypeOrIdentity(trace, over);
  if (PyDict_Check(over) && IsWrittenDict(trace, over)) throw Unknown();
  PyObject* item = UpcomingItem(iterator, ahead);
  PyObject* key = UpcomingKey(iterator, ahead);
  if (is_changed) {
    AdoptElements(trace, over);
    SpecializeItems(trace, over);
    AdoptResult(trace, item);
    return true;
  }
  const auto of_key = [&] {
    return FromSource(trace, trace.guards.Child(source, Accessor::kNextKey, skip, nullptr, key), key, false);
  };
  const auto of_item = [&] {
    return FromSource(trace, trace.guards.Child(source, Accessor::kNext, skip, nullptr, item), item, false);
  };
  if (kind == IteratorKind::kDictItems) {
    taken->is_tuple = true;
    taken->parts.resize(2);
    taken->parts[0].shadow = of_key();
    taken->parts[1].shadow = of_item();
  } else {
    taken->shadow = kind == IteratorKind::kDictKeys ? of_key() : of_item();
  }
  return true;
}

static Shadow UpcomingCount(Trace& trace, PyObject* iterator, SourceId source, int64_t skip, int64_t ahead) {
  int64_t number = 0;
  if (!UpcomingNumber(iterator, ahead, &number)) throw Unknown();
  const Ref<> count = Must(PyLong_FromLongLong(number));
  return FromSource(trace, trace.guards.Child(source, Accessor::kCount, skip, nullptr, count.get()), count.get(),
                    false);
}

static void SpecializeTaken(Trace& trace, const TakenItem& taken) {
  Specialize(trace, nullptr, taken.shadow);
  for (const TakenItem& part : taken.parts) SpecializeTaken(trace, part);
}

Shadow AdoptTaken(Trace& trace, PyObject* object, const TakenItem& taken) {
  if (!taken.is_tuple) return taken.shadow;
  ObjectRecord& known = AddFresh(trace, object);
  for (size_t i = 0; i < taken.parts.size(); ++i) {
    known.items.push_back(AdoptTaken(trace, PyTuple_GET_ITEM(object, static_cast<Py_ssize_t>(i)), taken.parts[i]));
  }
  return Shadow();
}

bool TakeNext(Trace& trace, FrameNote& note, PyObject* iterator) {
  TakesNow now;
  trace.iteration.taken = TakenItem();
  const SourceId source = SourceOf(trace, iterator);
  if (!source.valid() || !IsMetIterator(trace, iterator)) throw Unknown();
  bool has_item = true;
  if (KindOfIterator(iterator) == IteratorKind::kMap) {
    // Its callees are in the graph, so a replay advances only the iterators below.
    PyObject* function = IteratedOver(iterator, 0);
    if (!PyFunction_Check(function)) throw Unknown();
    GuardTypeOrIdentity(trace, iterator);
    FromSource(trace, trace.guards.Child(source, Accessor::kOver, 0, nullptr, function), function, false);
    GuardTypeOrIdentity(trace, function);
    PyObject* parts = IteratedOver(iterator, 1);
    has_item = UpcomingOfAll(trace, parts, trace.guards.Child(source, Accessor::kOver, 1, nullptr, parts), &now,
                             &trace.iteration.taken);
    for (size_t i = 0; i < trace.iteration.taken.parts.size(); ++i) {
      AddEffect(trace, Effect::Kind::kAdvance, PyTuple_GET_ITEM(parts, static_cast<Py_ssize_t>(i)), "", {}, {});
    }
    // C code hands them to the function: what they are is fixed.
    SpecializeTaken(trace, trace.iteration.taken);
  } else {
    has_item = Upcoming(trace, iterator, source, &now, &trace.iteration.taken);
    AddEffect(trace, Effect::Kind::kAdvance, iterator, "", {}, {});
    note.op.expect.kind = ResultSpec::Kind::kTaken;
  }
  for (const auto& [part, times] : now) trace.iteration.met.at(part).taken += times;
  return has_item;
}
}  // namespace frametap
