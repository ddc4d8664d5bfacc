// Iterators that existed before: taking from one reads what it gives next, and is an effect.
//   - The recorder reads the item, by a path through the iterator (`S[0].<next>[0]`), and its existence; not how many
//     have been given before. So a loop with a break in each round needs no segment of its own for each.
//   - A container that the trace has changed since has its items from the trace: where the iterator stands is fixed.
#include "frame_eval/record/recorder.h"
#include "guards/cpython/iterator_view.h"
#include "guards/must.h"

namespace frametap {
namespace {

constexpr int kDeepest = 8;  // of iterators over iterators

Break Unknown() { return Break{Reason::unknown_operation, "an iterator that existed before"}; }

// The iterators that this one takes from are in a tuple; null: there is none.
PyObject* PartsOf(PyObject* iterator, IteratorKind kind) {
  return kind == IteratorKind::kEnumerate ? nullptr : IteratedOver(iterator, kind == IteratorKind::kMap ? 1 : 0);
}

}  // namespace

// The items left in it at the entry, before anything is taken.
void Recorder::MeetIterator(PyObject* iterator, SourceId source, int depth) {
  const IteratorKind kind = KindOfIterator(iterator);
  if (kind == IteratorKind::kNone || depth > kDeepest) return;
  auto [it, is_new] = iterators_.try_emplace(iterator);
  if (!is_new) return;
  it->second.source = source;
  if (!TakesFromIterators(kind)) {
    const int64_t left = ItemsLeft(iterator);
    PyObject* over = IteratedOver(iterator, 0);
    const Known* content = over == nullptr ? nullptr : Find(over);
    it->second.lost = left < 0 || (content != nullptr && content->mutated);
    it->second.was_at_end = left == 0;
    it->second.left = guards_.Child(source, Accessor::kLeft, 0, nullptr, nullptr);
    return;
  }
  PyObject* parts = PartsOf(iterator, kind);
  if (parts == nullptr) {
    PyObject* part = IteratedOver(iterator, 0);
    return MeetIterator(part, guards_.Child(source, Accessor::kOver, 0, nullptr, part), depth + 1);
  }
  const SourceId tuple = guards_.Child(source, Accessor::kOver, kind == IteratorKind::kMap ? 1 : 0, nullptr, parts);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parts); ++i) {
    PyObject* part = PyTuple_GET_ITEM(parts, i);
    MeetIterator(part, guards_.Child(tuple, Accessor::kItem, i, nullptr, part), depth + 1);
  }
}

bool Recorder::IsMetIterator(PyObject* object) const { return iterators_.contains(object); }

// Its content has changed since the entry, and the old content is unknown.
void Recorder::RefuseWrittenDict(PyObject* dict) const {
  if (!effects_.empty() && IsWrittenDict(dict))
    throw Break{Reason::unknown_operation, "a dict whose object was written to"};
}

// Something of the object that the dict belongs to was written, or of the module.
bool Recorder::IsWrittenDict(PyObject* dict) const {
  for (const PendingEffect& effect : effects_) {
    PyObject* target = effect.target.get();
    if (effect.kind == Effect::Kind::kSetGlobal && target == dict) return true;
    if (effect.kind != Effect::Kind::kSetAttr && effect.kind != Effect::Kind::kDelAttr) continue;
    PyObject** own = _PyObject_GetDictPtr(target);
    if (own != nullptr && *own == dict) return true;
  }
  return false;
}

// The next item, if `now` is the number that the operation at work has already taken. Returns false at the end.
// `source` leads to the iterator.
bool Recorder::Upcoming(PyObject* iterator, SourceId source, Takes* now, Taken* taken) {
  const IteratorKind kind = KindOfIterator(iterator);
  const auto met = iterators_.find(iterator);
  if (met == iterators_.end() || met->second.lost || kind == IteratorKind::kMap) throw Unknown();
  const MetIterator note = met->second;
  FromSource(source, iterator, false);
  FromSource(note.source, iterator, false);
  Touch(iterator);
  const Known* known = Find(iterator);
  if (known->state != Known::State::kSource) throw Unknown();
  if (!known->mutated) mutated_sources_.push_back(iterator);
  MarkMutated(iterator);
  source = known->source;
  const int64_t ahead = (*now)[iterator];
  if (!TakesFromIterators(kind)) {
    ++(*now)[iterator];
    return UpcomingOfOne(iterator, source, note, ahead, taken);
  }
  PyObject* over = IteratedOver(iterator, 0);
  const SourceId part = guards_.Child(source, Accessor::kOver, 0, nullptr, over);
  taken->is_tuple = true;
  if (kind == IteratorKind::kZip) return UpcomingOfAll(over, part, now, taken);
  taken->parts.resize(2);
  if (!Upcoming(over, part, now, &taken->parts[1])) return false;
  ++(*now)[iterator];
  taken->parts[0].shadow = UpcomingCount(iterator, source, note.taken + ahead, ahead);
  return true;
}

bool Recorder::UpcomingOfAll(PyObject* iterators, SourceId source, Takes* now, Taken* taken) {
  FromSource(source, iterators, false);
  AdoptElements(iterators);
  const Py_ssize_t n = PyTuple_GET_SIZE(iterators);
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* part = PyTuple_GET_ITEM(iterators, i);
    const SourceId at = guards_.Child(source, Accessor::kItem, i, nullptr, part);
    if (!Upcoming(part, at, now, &taken->parts.emplace_back())) return false;
  }
  return n > 0;
}

bool Recorder::UpcomingOfOne(PyObject* iterator, SourceId source, const MetIterator& note, int64_t ahead,
                             Taken* taken) {
  const IteratorKind kind = KindOfIterator(iterator);
  const int64_t skip = note.taken + ahead;
  const int64_t left = ItemsLeft(iterator);
  PyObject* over = IteratedOver(iterator, 0);
  if (left < 0) throw Unknown();
  const Known* content = over == nullptr ? nullptr : Find(over);
  const bool is_changed = content != nullptr && content->mutated;
  if (is_changed && (PyDict_Check(over) || note.was_at_end)) throw Unknown();
  if (is_changed || left <= ahead || kind == IteratorKind::kText) {
    guards_.Value(note.left, Here());
  } else {
    guards_.Relation(note.left, Py_GT, Must(PyLong_FromLongLong(skip)).get(), true, Here());
  }
  if (left <= ahead) {
    if (over != nullptr) MeetRelease(over);  // by the iterator
    return false;
  }
  if (kind == IteratorKind::kRange) {
    taken->shadow = UpcomingCount(iterator, source, skip, ahead);
    return true;
  }
  const Shadow shadow = FromSource(guards_.Child(source, Accessor::kOver, 0, nullptr, over), over, false);
  if (kind == IteratorKind::kText) {
    Force(over, shadow);
    return true;
  }
  Touch(over);
  if (PyDict_Check(over) && IsWrittenDict(over)) throw Unknown();
  PyObject* item = UpcomingItem(iterator, ahead);
  PyObject* key = UpcomingKey(iterator, ahead);
  if (is_changed) {
    AdoptElements(over);
    ForceItems(over);
    AdoptResult(item);
    return true;
  }
  const auto of_key = [&] {
    return FromSource(guards_.Child(source, Accessor::kNextKey, skip, nullptr, key), key, false);
  };
  const auto of_item = [&] {
    return FromSource(guards_.Child(source, Accessor::kNext, skip, nullptr, item), item, false);
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

Shadow Recorder::UpcomingCount(PyObject* iterator, SourceId source, int64_t skip, int64_t ahead) {
  int64_t number = 0;
  if (!UpcomingNumber(iterator, ahead, &number)) throw Unknown();
  const Ref<> count = Must(PyLong_FromLongLong(number));
  return FromSource(guards_.Child(source, Accessor::kCount, skip, nullptr, count.get()), count.get(), false);
}

void Recorder::ForceTaken(const Taken& taken) {
  Force(nullptr, taken.shadow);
  for (const Taken& part : taken.parts) ForceTaken(part);
}

Shadow Recorder::AdoptTaken(PyObject* object, const Taken& taken) {
  if (!taken.is_tuple) return taken.shadow;
  Known& known = AddFresh(object);
  for (size_t i = 0; i < taken.parts.size(); ++i) {
    known.items.push_back(AdoptTaken(PyTuple_GET_ITEM(object, static_cast<Py_ssize_t>(i)), taken.parts[i]));
  }
  return Shadow();
}

bool Recorder::TakeNext(FrameNote& note, PyObject* iterator) {
  Takes now;
  taken_ = Taken();
  const SourceId source = SourceOf(iterator);
  if (!source.valid() || !IsMetIterator(iterator)) throw Unknown();
  bool has_item = true;
  if (KindOfIterator(iterator) == IteratorKind::kMap) {
    // Its callees are in the graph, so a replay advances only the iterators below.
    PyObject* function = IteratedOver(iterator, 0);
    if (!PyFunction_Check(function)) throw Unknown();
    Touch(iterator);
    FromSource(guards_.Child(source, Accessor::kOver, 0, nullptr, function), function, false);
    Touch(function);
    PyObject* parts = IteratedOver(iterator, 1);
    has_item = UpcomingOfAll(parts, guards_.Child(source, Accessor::kOver, 1, nullptr, parts), &now, &taken_);
    for (size_t i = 0; i < taken_.parts.size(); ++i) {
      AddEffect(Effect::Kind::kAdvance, PyTuple_GET_ITEM(parts, static_cast<Py_ssize_t>(i)), "", {}, {});
    }
    // C code hands them to the function: what they are is fixed.
    ForceTaken(taken_);
  } else {
    has_item = Upcoming(iterator, source, &now, &taken_);
    AddEffect(Effect::Kind::kAdvance, iterator, "", {}, {});
    note.expect.kind = Expect::Kind::kTaken;
  }
  for (const auto& [part, times] : now) iterators_.at(part).taken += times;
  return has_item;
}
}  // namespace frametap
