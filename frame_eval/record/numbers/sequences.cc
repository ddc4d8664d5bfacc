#include "frame_eval/record/numbers/sequences.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/objects/force.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/objects/outside_containers.h"
#include "frame_eval/record/objects/own_dicts.h"
#include "frame_eval/record/semantics/predicted_calls.h"
#include "frame_eval/record/trace/array_nodes.h"

namespace frametap {

static bool GivesNoTuples(const Trace& trace, PyObject* object);
namespace {

PyObject* ItemOf(PyObject* row, size_t index) { return PySequence_Fast_GET_ITEM(row, static_cast<Py_ssize_t>(index)); }

size_t RowSize(PyObject* row) { return static_cast<size_t>(PySequence_Fast_GET_SIZE(row)); }

}  // namespace

void ViewRows(Trace& trace, PyObject* rows) {
  if (PyList_Check(rows)) {
    ObjectRecord* const known = trace.objects.Find(rows);
    if (known == nullptr || known->is_viewed) return;
    known->is_viewed = true;
  } else if (!PyTuple_Check(rows)) {
    return;
  }
  for (size_t i = 0; i < RowSize(rows); ++i) ViewRows(trace, ItemOf(rows, i));
}

namespace {

bool IsViewed(Trace& trace, PyObject* list) {
  const ObjectRecord* const known = PyList_Check(list) ? trace.objects.Find(list) : nullptr;
  return known != nullptr && known->is_viewed;
}

}  // namespace

// R4
bool FixIfViewed(Trace& trace, PyObject* list, PyObject* item, Shadow shadow) {
  if (item == nullptr || !IsViewed(trace, list)) return false;
  SpecializeDeep(trace, item, shadow, true);
  ViewRows(trace, item);
  return true;
}

// Returns whether some numbers of a tuple or list are not fixed.
bool HasOpenItems(Trace& trace, PyObject* row) {
  const bool is_row = IsPlainTuple(row) || PyList_CheckExact(row);
  if (!is_row || !trace.numbers.any_open() || trace.objects.Find(row) == nullptr) return false;
  GuardTypeOrIdentity(trace, row);
  AdoptElements(trace, row);
  for (size_t i = 0; i < RowSize(row); ++i) {
    if (LeavesOpen(trace, ItemOf(row, i), ElementShadow(trace, row, static_cast<Py_ssize_t>(i)))) return true;
  }
  return false;
}

// The items stay known: a segment that is cut before this operation has no such guards, and leaves them open.
void SpecializeItems(Trace& trace, PyObject* container) {
  const ObjectRecord* const known = trace.objects.Find(container);
  if (known == nullptr || known->items.empty()) return;
  for (size_t i = 0; i < known->items.size(); ++i) {
    if (PySlice_Check(container)) {
      Specialize(trace, PartsOf(container)[i], known->items[i]);
    } else if (i < RowSize(container)) {
      Specialize(trace, ItemOf(container, i), known->items[i]);
    }
  }
}

void SpecializeAndForgetItems(Trace& trace, PyObject* list) {
  SpecializeItems(trace, list);
  trace.objects.Find(list)->items.clear();  // if one cannot be fixed, the segment ends with the present content
}

// ---- rows made of rows ----------------------------------------------------------------------------------------------

// The result holds the items of these, one row after the other.
void KeepItems(Trace& trace, FrameNote& note, std::initializer_list<PyObject*> rows) {
  note.op.expect.kind = ResultSpec::Kind::kItems;
  for (PyObject* row : rows) {
    GuardTypeOrIdentity(trace, row);
    AdoptElements(trace, row);
    for (size_t i = 0; i < RowSize(row); ++i) {
      note.op.expect.items.push_back(ElementShadow(trace, row, static_cast<Py_ssize_t>(i)));
    }
  }
}

// x.shape[:-1] + (heads, size), [n] + l, l += [n]. Returns false if they are not such sequences, or nothing of them is
// open.
bool JoinRows(Trace& trace, FrameNote& note, PyObject* left, PyObject* right, bool in_place) {
  const bool are_lists = PyList_CheckExact(left) && PyList_CheckExact(right);
  if (are_lists && in_place) return AppendItems(trace, left, right, nullptr, Shadow());
  if (are_lists ? !HasOpenItems(trace, left) && !HasOpenItems(trace, right)
                : !(IsPlainTuple(left) && IsPlainTuple(right))) {
    return false;
  }
  KeepItems(trace, note, {left, right});
  return true;
}

// ---- lists that change ----------------------------------------------------------------------------------------------

// A list of the trace grows by `item`, or by all of `items`, and open numbers stay open. Returns false if nothing is
// open.
bool AppendItems(Trace& trace, PyObject* list, PyObject* items, PyObject* item, Shadow shadow) {
  ObjectRecord* known = trace.objects.Find(list);
  if (known == nullptr || known->state != ObjectRecord::State::kFresh || !PyList_CheckExact(list)) return false;
  if (FixIfViewed(trace, list, items != nullptr ? items : item, shadow)) return false;
  absl::InlinedVector<Shadow, 4> shadows;
  bool open = !known->items.empty();
  const auto add = [&](PyObject* object, Shadow of) { shadows.push_back(KeepOpen(trace, object, of, &open)); };
  GivenItems given;
  if (items == nullptr) {
    add(item, shadow);
  } else if (GivesNoTuples(trace, items) && TakeRest(trace, items, &given)) {
    for (size_t i = 0; i < given.objects.size(); ++i) add(given.objects[i], given.shadows[i][0]);
  } else if ((PyTuple_Check(items) && IteratesByPlace(items)) || PyList_CheckExact(items)) {
    if (trace.objects.Find(items) == nullptr) return false;
    GuardTypeOrIdentity(trace, items);
    AdoptElements(trace, items);
    for (size_t i = 0; i < RowSize(items); ++i) {
      add(ItemOf(items, i), ElementShadow(trace, items, static_cast<Py_ssize_t>(i)));
    }
  } else {
    return false;
  }
  if (!open) return false;
  MeetAsObject(trace, list);
  known = trace.objects.Find(list);
  known->items.resize(RowSize(list));
  known->items.insert(known->items.end(), shadows.begin(), shadows.end());
  known->MutatedIn(trace.epoch);
  return true;
}

// The list's items, if it is a list of the trace whose changes can be followed. Null if neither its content nor its
// new items are open.
static ObjectRecord* OpenList(Trace& trace, PyObject* list, bool holds_open) {
  ObjectRecord* known = trace.objects.Find(list);
  if (known == nullptr || known->state != ObjectRecord::State::kFresh || !PyList_CheckExact(list)) return nullptr;
  if (known->items.empty() && !holds_open) return nullptr;
  MeetAsObject(trace, list);
  known->items.resize(RowSize(list));
  known->MutatedIn(trace.epoch);
  return known;
}

// sizes[-1] = n
bool StoreItem(Trace& trace, PyObject* list, PyObject* key, PyObject* value, Shadow shadow) {
  Py_ssize_t index = PyLong_CheckExact(key) ? PyLong_AsSsize_t(key) : -1;
  PyErr_Clear();
  if (!PyList_CheckExact(list) || !PyLong_CheckExact(key)) return false;
  if (index < 0) index += PyList_GET_SIZE(list);
  if (index < 0 || index >= PyList_GET_SIZE(list)) return false;
  if (FixIfViewed(trace, list, value, shadow)) return false;
  bool open = false;
  const Shadow kept = KeepOpen(trace, value, shadow, &open);
  ObjectRecord* const known = OpenList(trace, list, open);
  if (known == nullptr) return false;
  known->items[static_cast<size_t>(index)] = kept;
  return true;
}

// sizes.append(n), .extend(row), .insert(0, n), .pop(): as `name` does to the first argument.
bool ChangeList(Trace& trace, Call& call, const char* name) {
  const auto is = [&](const char* method, size_t least, size_t most) {
    return std::strcmp(name, method) == 0 && call.args.size() >= least && call.args.size() <= most;
  };
  PyObject* const list = call.args[0];
  if (!PyList_CheckExact(list) || !call.names.empty()) return false;
  if (is("append", 2, 2)) return AppendItems(trace, list, nullptr, call.args[1], call.shadows[1]);
  if (is("extend", 2, 2)) return AppendItems(trace, list, call.args[1], nullptr, Shadow());
  const bool inserts = is("insert", 3, 3);
  if (!inserts && !is("pop", 1, 2)) return false;
  Py_ssize_t index = -1;
  const Py_ssize_t size = PyList_GET_SIZE(list);
  if (call.args.size() > 1) {
    if (!PyLong_CheckExact(call.args[1])) return false;
    Specialize(trace, call.args[1], call.shadows[1]);
    index = PyLong_AsSsize_t(call.args[1]);
    if (index == -1 && PyErr_Occurred() != nullptr) return PyErr_Clear(), false;
  }
  if (index < 0) index += size;
  if (inserts) {
    if (FixIfViewed(trace, list, call.args[2], call.shadows[2])) return false;
    bool open = false;
    const Shadow kept = KeepOpen(trace, call.args[2], call.shadows[2], &open);
    ObjectRecord* const known = OpenList(trace, list, open);
    if (known == nullptr) return false;
    known->items.insert(known->items.begin() + std::clamp<Py_ssize_t>(index, 0, size), kept);
    return true;
  }
  if (index < 0 || index >= size) return false;
  ObjectRecord* const known = OpenList(trace, list, false);
  if (known == nullptr) return false;
  const Shadow taken = known->items[static_cast<size_t>(index)];
  known->items.erase(known->items.begin() + index);
  if (taken.kind == Shadow::Kind::kNone) return true;
  call.note.op.expect.SetShadow(taken);
  return true;
}

// ---- iterators over them --------------------------------------------------------------------------------------------

// Returns whether an iterator over the row leaves something of it open (R3). If nothing is, all of the row is to be fixed.
bool LeavesContentOpen(Trace& trace, PyObject* row) {
  if (HasOpenItems(trace, row)) return true;
  if ((!IsPlainTuple(row) && !PyList_CheckExact(row)) || trace.objects.Find(row) == nullptr) return false;
  const auto stays_open = [&trace](PyObject* item) {
    return PyDict_CheckExact(item) || PyList_CheckExact(item) || IsPlainTuple(item) || IsArrayOperand(trace, item) ||
           PyWeakref_CheckRefExact(item);
  };
  size_t open = 0;
  for (size_t i = 0; i < RowSize(row); ++i) open += stays_open(ItemOf(row, i));
  if (open == 0) return false;
  GuardTypeOrIdentity(trace, row);
  AdoptElements(trace, row);
  for (size_t i = 0; i < RowSize(row); ++i) {
    PyObject* const item = ItemOf(row, i);
    if (!stays_open(item)) SpecializeDeep(trace, item, ElementShadow(trace, row, static_cast<Py_ssize_t>(i)), true);
  }
  return true;
}

// zip(a, b), enumerate(a), iter(a): what is iterated over is fixed, except rows of which something is left open.
void MakesIterator(Trace& trace, const Call& call) {
  bool open = false;
  for (size_t i = 0; i < call.positional() && !open; ++i) open = LeavesContentOpen(trace, call.args[i]);
  for (size_t i = 0; i < call.args.size(); ++i) {
    const bool is_tuple = PyTuple_Check(call.args[i]) && IteratesByPlace(call.args[i]);
    const bool is_row = i < call.positional() && (is_tuple || PyList_CheckExact(call.args[i]));
    open = open && (i >= call.positional() || is_row);
  }
  if (!open) {
    SpecializeArguments(trace, call, 0, true);
    for (PyObject* arg : call.args) ViewRows(trace, arg);
    return;
  }
  call.note.op.marks.makes_iterator = true;
  const size_t rows = call.callable == reinterpret_cast<PyObject*>(&PyZip_Type) ? call.positional() : 1;
  trace.iteration.iterated.assign(call.args.begin(), call.args.begin() + static_cast<ptrdiff_t>(rows));
  for (size_t i = 0; i < call.args.size(); ++i) {
    if (i < call.positional() && LeavesContentOpen(trace, call.args[i])) continue;
    SpecializeDeep(trace, call.args[i], call.shadows[i], true);
    ViewRows(trace, call.args[i]);
  }
}

void OpenIteratorOver(Trace& trace, PyObject* iterator) {
  using Gives = OpenIterator::Gives;
  const Gives gives = Py_TYPE(iterator) == &PyZip_Type             ? Gives::kTuple
                      : Py_TYPE(iterator) == &PyEnum_Type          ? Gives::kNumbered
                      : Py_TYPE(iterator) == &PyDictIterValue_Type ? Gives::kValue
                      : Py_TYPE(iterator) == &PyDictIterItem_Type  ? Gives::kPair
                                                                   : Gives::kItem;
  trace.iteration.open[iterator] = {gives, std::exchange(trace.iteration.iterated, {}), 0};
}

// Steps to the next item, and returns the shadows of its parts, or none at the end. `object` becomes the item, except a tuple
// that is made for it.
static std::optional<GivenItems::Parts> NextParts(Trace& trace, OpenIterator* from, PyObject** object) {
  using Gives = OpenIterator::Gives;
  if (from->gives == Gives::kValue || from->gives == Gives::kPair) {
    PyObject* key;
    if (PyDict_Next(from->rows[0], &from->next, &key, object) == 0) return std::nullopt;
    const Shadow* const open = StoredItem(trace, from->rows[0], key);
    GivenItems::Parts parts(from->gives == Gives::kPair ? 2 : 1);
    if (open != nullptr) parts.back() = *open;
    return parts;
  }
  const Py_ssize_t at = from->next++;
  GivenItems::Parts parts(from->gives == Gives::kNumbered ? 1 : 0);
  for (PyObject* row : from->rows) {
    if (static_cast<size_t>(at) >= RowSize(row)) return std::nullopt;
    parts.push_back(ElementShadow(trace, row, at));
  }
  *object = ItemOf(from->rows[0], static_cast<size_t>(at));
  return parts;
}

static bool GivesTuples(OpenIterator::Gives gives) {
  using Gives = OpenIterator::Gives;
  return gives == Gives::kTuple || gives == Gives::kNumbered || gives == Gives::kPair;
}

Shadow TakeOpen(Trace& trace, PyObject* iterator, PyObject* item) {
  OpenIterator& from = trace.iteration.open.at(iterator);
  PyObject* object = nullptr;
  const GivenItems::Parts parts = NextParts(trace, &from, &object).value();
  if (!GivesTuples(from.gives)) return parts[0].kind == Shadow::Kind::kNone ? AdoptResult(trace, item) : parts[0];
  AdoptResult(trace, item);
  trace.objects.Find(item)->items.assign(parts.begin(), parts.end());
  return Shadow();
}

static bool GivesNoTuples(const Trace& trace, PyObject* object) {
  if (PyDictValues_Check(object)) return true;
  const auto it = trace.iteration.open.find(object);
  return it != trace.iteration.open.end() && !GivesTuples(it->second.gives);
}

bool TakeRest(Trace& trace, PyObject* object, GivenItems* given) {
  const auto it = trace.iteration.open.find(object);
  const bool is_iterator = it != trace.iteration.open.end();
  PyObject* const dict = is_iterator ? nullptr : DictOfOpenView(trace, object);
  if (!is_iterator && dict == nullptr) return false;
  OpenIterator view{PyDictItems_Check(object) ? OpenIterator::Gives::kPair : OpenIterator::Gives::kValue, {dict}, 0};
  if (is_iterator) trace.objects.Find(object)->MutatedIn(trace.epoch);
  PyObject* item = nullptr;
  while (auto parts = NextParts(trace, is_iterator ? &it->second : &view, &item)) {
    given->shadows.push_back(*std::move(parts));
    given->objects.push_back(item);
  }
  return true;
}

bool TakesRest(const Trace& trace, const Event& e, PyObject* operand) {
  return (e.op == Op::kUnpack || e.op == Op::kListExtend) && GivesNoTuples(trace, operand) &&
         trace.iteration.open.contains(operand);
}

// The items are no tuples.
static void ExpectItems(FrameNote& note, ResultSpec::Kind kind, const GivenItems& given) {
  note.op.expect.kind = kind;
  for (const auto& shadows : given.shadows) note.op.expect.items.push_back(shadows[0]);
}

bool GiveItems(Trace& trace, FrameNote& note, PyObject* object, int names) {
  GivenItems given;
  if (!GivesNoTuples(trace, object) || !TakeRest(trace, object, &given)) return false;
  if (given.shadows.size() != static_cast<size_t>(names)) {
    CloseIterator(trace, object);
    FixView(trace, object);
    return false;
  }
  ExpectItems(note, ResultSpec::Kind::kGiven, given);
  return true;
}

bool GiveRow(Trace& trace, FrameNote& note, PyObject* object) {
  GivenItems given;
  const bool are_tuples = !GivesNoTuples(trace, object);
  if (!TakeRest(trace, object, &given)) return false;
  if (are_tuples) {
    note.op.expect.kind = ResultSpec::Kind::kGivenRow;
    trace.iteration.given = std::move(given);
  } else {
    ExpectItems(note, ResultSpec::Kind::kItems, given);
  }
  return true;
}

void AdoptGivenRow(Trace& trace, PyObject* row) {
  const GivenItems given = std::exchange(trace.iteration.given, {});
  AdoptResult(trace, row);
  for (size_t i = 0; i < RowSize(row); ++i)
    trace.objects.Find(ItemOf(row, i))->items.assign(given.shadows[i].begin(), given.shadows[i].end());
}

// It is used in another way: what it has still to give is fixed.
void CloseIterator(Trace& trace, PyObject* iterator) {
  const auto it = trace.iteration.open.find(iterator);
  if (it == trace.iteration.open.end()) return;
  const OpenIterator closed = std::move(it->second);
  trace.iteration.open.erase(it);
  for (PyObject* row : closed.rows) {
    SpecializeDeep(trace, row, Shadow(), true);
    ViewRows(trace, row);
  }
}

}  // namespace frametap
