// Tuples and lists that hold numbers which are not fixed, and iterators over them.
//   R1  A row has a shadow for each of its items (Known::items), or none at all. Its numbers stay open as long as each
//       change of it is followed here; any other use or change fixes them (ForceDeep, MarkMutated).
//   R2  Only lists of the trace's own are followed through changes: a change of one that existed before is an effect,
//       whose values are fixed.
//   R3  An iterator over rows gives their items one by one, and reads none. Any use of it except taking the next item in
//       a loop may hand the items to C code, which reads all that is in them: CloseIterator.
//   R4  A list may change while an iterator of another kind waits to look at it. Numbers that it gets are fixed then
//       (Known::is_viewed).
#include "frame_eval/record/numbers/rows.h"
#include "frame_eval/record/trace/array_nodes.h"

#include <algorithm>
#include <cstring>

#include "frame_eval/record/recorder.h"
#include "guards/must.h"

namespace frametap {
namespace {

PyObject* ItemOf(PyObject* row, size_t index) { return PySequence_Fast_GET_ITEM(row, static_cast<Py_ssize_t>(index)); }

size_t RowSize(PyObject* row) { return static_cast<size_t>(PySequence_Fast_GET_SIZE(row)); }

}  // namespace

void ViewRows(Recorder& r, PyObject* rows) {
  if (PyList_Check(rows)) {
    Known* const known = r.Find(rows);
    if (known == nullptr || known->is_viewed) return;
    known->is_viewed = true;
  } else if (!PyTuple_Check(rows)) {
    return;
  }
  for (size_t i = 0; i < RowSize(rows); ++i) ViewRows(r, ItemOf(rows, i));
}

namespace {

bool IsViewed(Recorder& r, PyObject* list) {
  const Known* const known = PyList_Check(list) ? r.Find(list) : nullptr;
  return known != nullptr && known->is_viewed;
}

}  // namespace

// R4
bool FixIfViewed(Recorder& r, PyObject* list, PyObject* item, Shadow shadow) {
  if (item == nullptr || !IsViewed(r, list)) return false;
  r.ForceDeep(item, shadow, true);
  ViewRows(r, item);
  return true;
}

// Returns whether some numbers of a tuple or list are not fixed.
bool Recorder::HasOpenItems(PyObject* row) {
  const bool is_row = IsPlainTuple(row) || PyList_CheckExact(row);
  if (!is_row || !numbers_open() || Find(row) == nullptr) return false;
  Touch(row);
  AdoptElements(row);
  for (size_t i = 0; i < RowSize(row); ++i) {
    if (LeavesOpen(ItemOf(row, i), ElementShadow(row, static_cast<Py_ssize_t>(i)))) return true;
  }
  return false;
}

void Recorder::ForceItems(PyObject* container) {
  Known* known = Find(container);
  if (known == nullptr || known->items.empty()) return;
  for (size_t i = 0; i < known->items.size(); ++i) {
    if (PySlice_Check(container)) {
      Force(PartsOf(container)[i], known->items[i]);
    } else if (i < RowSize(container)) {
      Force(ItemOf(container, i), known->items[i]);
    }
  }
  known->items.clear();  // not before: if one cannot be fixed, the segment ends with the container's present content
}

// ---- rows made of rows ----------------------------------------------------------------------------------------------

// The result holds the items of these, one row after the other.
void Recorder::KeepItems(FrameNote& note, std::initializer_list<PyObject*> rows) {
  note.expect.kind = Expect::Kind::kItems;
  for (PyObject* row : rows) {
    Touch(row);
    AdoptElements(row);
    for (size_t i = 0; i < RowSize(row); ++i) {
      note.expect.items.push_back(ElementShadow(row, static_cast<Py_ssize_t>(i)));
    }
  }
}

// x.shape[:-1] + (heads, size), [n] + l, l += [n]. Returns false if they are not such sequences, or nothing of them is
// open.
bool Recorder::JoinRows(FrameNote& note, PyObject* left, PyObject* right, bool in_place) {
  const bool are_lists = PyList_CheckExact(left) && PyList_CheckExact(right);
  if (are_lists && in_place) return AppendItems(left, right, nullptr, Shadow());
  if (are_lists ? !HasOpenItems(left) && !HasOpenItems(right) : !(IsPlainTuple(left) && IsPlainTuple(right))) {
    return false;
  }
  KeepItems(note, {left, right});
  return true;
}

// ---- lists that change ----------------------------------------------------------------------------------------------

// A list of the trace grows by `item`, or by all of `items`, and open numbers stay open. Returns false if nothing is
// open.
bool Recorder::AppendItems(PyObject* list, PyObject* items, PyObject* item, Shadow shadow) {
  Known* known = Find(list);
  if (known == nullptr || known->state != Known::State::kFresh || !PyList_CheckExact(list)) return false;
  if (FixIfViewed(*this, list, items != nullptr ? items : item, shadow)) return false;
  absl::InlinedVector<Shadow, 4> shadows;
  bool open = !known->items.empty();
  const auto add = [&](PyObject* object, Shadow of) { shadows.push_back(KeepOpen(object, of, &open)); };
  if (items == nullptr) {
    add(item, shadow);
  } else if ((PyTuple_Check(items) && IteratesByPlace(items)) || PyList_CheckExact(items)) {
    if (Find(items) == nullptr) return false;
    Touch(items);
    AdoptElements(items);
    for (size_t i = 0; i < RowSize(items); ++i) {
      add(ItemOf(items, i), ElementShadow(items, static_cast<Py_ssize_t>(i)));
    }
  } else {
    return false;
  }
  if (!open) return false;
  known = Find(list);
  known->items.resize(RowSize(list));
  known->items.insert(known->items.end(), shadows.begin(), shadows.end());
  known->MutatedIn(epoch_);
  return true;
}

// The list's items, if it is a list of the trace whose changes can be followed. Null if neither its content nor its
// new items are open.
Known* Recorder::OpenList(PyObject* list, bool holds_open) {
  Known* known = Find(list);
  if (known == nullptr || known->state != Known::State::kFresh || !PyList_CheckExact(list)) return nullptr;
  if (known->items.empty() && !holds_open) return nullptr;
  known->items.resize(RowSize(list));
  known->MutatedIn(epoch_);
  return known;
}

// sizes[-1] = n
bool Recorder::StoreItem(PyObject* list, PyObject* key, PyObject* value, Shadow shadow) {
  Py_ssize_t index = PyLong_CheckExact(key) ? PyLong_AsSsize_t(key) : -1;
  PyErr_Clear();
  if (!PyList_CheckExact(list) || !PyLong_CheckExact(key)) return false;
  if (index < 0) index += PyList_GET_SIZE(list);
  if (index < 0 || index >= PyList_GET_SIZE(list)) return false;
  if (FixIfViewed(*this, list, value, shadow)) return false;
  bool open = false;
  const Shadow kept = KeepOpen(value, shadow, &open);
  Known* const known = OpenList(list, open);
  if (known == nullptr) return false;
  known->items[static_cast<size_t>(index)] = kept;
  return true;
}

// sizes.append(n), .extend(row), .insert(0, n), .pop(): as `name` does to the first argument.
bool Recorder::ChangeList(Call& call, const char* name) {
  const auto is = [&](const char* method, size_t least, size_t most) {
    return std::strcmp(name, method) == 0 && call.args.size() >= least && call.args.size() <= most;
  };
  PyObject* const list = call.args[0];
  if (!PyList_CheckExact(list) || !call.names.empty()) return false;
  if (is("append", 2, 2)) return AppendItems(list, nullptr, call.args[1], call.shadows[1]);
  if (is("extend", 2, 2)) return AppendItems(list, call.args[1], nullptr, Shadow());
  const bool inserts = is("insert", 3, 3);
  if (!inserts && !is("pop", 1, 2)) return false;
  Py_ssize_t index = -1;
  const Py_ssize_t size = PyList_GET_SIZE(list);
  if (call.args.size() > 1) {
    if (!PyLong_CheckExact(call.args[1])) return false;
    Force(call.args[1], call.shadows[1]);
    index = PyLong_AsSsize_t(call.args[1]);
    if (index == -1 && PyErr_Occurred() != nullptr) return PyErr_Clear(), false;
  }
  if (index < 0) index += size;
  if (inserts) {
    if (FixIfViewed(*this, list, call.args[2], call.shadows[2])) return false;
    bool open = false;
    const Shadow kept = KeepOpen(call.args[2], call.shadows[2], &open);
    Known* const known = OpenList(list, open);
    if (known == nullptr) return false;
    known->items.insert(known->items.begin() + std::clamp<Py_ssize_t>(index, 0, size), kept);
    return true;
  }
  if (index < 0 || index >= size) return false;
  Known* const known = OpenList(list, false);
  if (known == nullptr) return false;
  const Shadow taken = known->items[static_cast<size_t>(index)];
  known->items.erase(known->items.begin() + index);
  if (taken.kind == Shadow::Kind::kNone) return true;
  call.note.expect.kind = Expect::Kind::kShadow;
  call.note.expect.shadow = taken;
  return true;
}

// ---- iterators over them --------------------------------------------------------------------------------------------

// Returns whether an iterator over the row leaves something of it open (R3). If nothing is, all of the row is to be fixed.
bool Recorder::LeavesContentOpen(PyObject* row) {
  if (HasOpenItems(row)) return true;
  if ((!IsPlainTuple(row) && !PyList_CheckExact(row)) || Find(row) == nullptr) return false;
  const auto stays_open = [this](PyObject* item) {
    return PyDict_CheckExact(item) || PyList_CheckExact(item) || IsPlainTuple(item) || IsArrayOperand(*this, item) ||
           PyWeakref_CheckRefExact(item);
  };
  size_t open = 0;
  for (size_t i = 0; i < RowSize(row); ++i) open += stays_open(ItemOf(row, i));
  if (open == 0) return false;
  Touch(row);
  AdoptElements(row);
  for (size_t i = 0; i < RowSize(row); ++i) {
    PyObject* const item = ItemOf(row, i);
    if (!stays_open(item)) ForceDeep(item, ElementShadow(row, static_cast<Py_ssize_t>(i)), true);
  }
  return true;
}

// zip(a, b), enumerate(a), iter(a): what is iterated over is fixed, except rows of which something is left open.
void Recorder::MakesIterator(const Call& call) {
  bool open = false;
  for (size_t i = 0; i < call.positional() && !open; ++i) open = LeavesContentOpen(call.args[i]);
  for (size_t i = 0; i < call.args.size(); ++i) {
    const bool is_tuple = PyTuple_Check(call.args[i]) && IteratesByPlace(call.args[i]);
    const bool is_row = i < call.positional() && (is_tuple || PyList_CheckExact(call.args[i]));
    open = open && (i >= call.positional() || is_row);
  }
  if (!open) {
    ForceArguments(call, 0, true);
    for (PyObject* arg : call.args) ViewRows(*this, arg);
    return;
  }
  call.note.marks.makes_iterator = true;
  const size_t rows = call.callable == reinterpret_cast<PyObject*>(&PyZip_Type) ? call.positional() : 1;
  iterated_.assign(call.args.begin(), call.args.begin() + static_cast<ptrdiff_t>(rows));
  for (size_t i = 0; i < call.args.size(); ++i) {
    if (i < call.positional() && LeavesContentOpen(call.args[i])) continue;
    ForceDeep(call.args[i], call.shadows[i], true);
    ViewRows(*this, call.args[i]);
  }
}

void Recorder::OpenIteratorOver(PyObject* iterator) {
  using Gives = OpenIterator::Gives;
  const Gives gives = Py_TYPE(iterator) == &PyZip_Type    ? Gives::kTuple
                      : Py_TYPE(iterator) == &PyEnum_Type ? Gives::kNumbered
                                                          : Gives::kItem;
  open_iterators_[iterator] = {gives, std::exchange(iterated_, {}), 0};
}

Shadow Recorder::TakeOpen(PyObject* iterator, PyObject* item) {
  OpenIterator& from = open_iterators_.at(iterator);
  const Py_ssize_t index = from.next++;
  if (from.gives == OpenIterator::Gives::kItem) {
    const Shadow shadow = ElementShadow(from.rows[0], index);
    return shadow.kind == Shadow::Kind::kNone ? AdoptResult(item) : shadow;
  }
  AdoptResult(item);
  Known& tuple = *Find(item);
  tuple.items.clear();
  if (from.gives == OpenIterator::Gives::kNumbered) tuple.items.emplace_back();
  for (PyObject* row : from.rows) tuple.items.push_back(ElementShadow(row, index));
  return Shadow();
}

// It is used in another way: what it has still to give is fixed.
void Recorder::CloseIterator(PyObject* iterator) {
  const auto it = open_iterators_.find(iterator);
  if (it == open_iterators_.end()) return;
  const OpenIterator closed = std::move(it->second);
  open_iterators_.erase(it);
  for (PyObject* row : closed.rows) {
    ForceDeep(row, Shadow(), true);
    ViewRows(*this, row);
  }
}

}  // namespace frametap
