#include "guards/cpython/iterator_view.h"

#include <algorithm>
#include <string>
#include <utility>

namespace frametap {
namespace {

// CPython 3.11.
struct SequenceIterator {  // list_iterator, list_reverseiterator, tuple_iterator, str_iterator, reversed
  PyObject_HEAD Py_ssize_t index;
  PyObject* sequence;  // null at the end
};

struct RangeIterator {
  PyObject_HEAD long index, start, step, length;
};

struct DictIterator {
  PyObject_HEAD PyObject* dict;  // null at the end
  Py_ssize_t used;               // the dict's size, or -1 once it had another
  Py_ssize_t position;           // as PyDict_Next has it
  PyObject* result;
  Py_ssize_t left;
};

struct Enumerate {
  PyObject_HEAD Py_ssize_t count;
  PyObject* iterator;
  PyObject* result;
  PyObject* long_count;  // instead of `count`
  PyObject* one;
};

struct Zip {
  PyObject_HEAD Py_ssize_t size;
  PyObject* iterators;
  PyObject* result;
  int strict;
};

struct Map {
  PyObject_HEAD PyObject* iterators;
  PyObject* function;
};

template <class Layout>
Layout* As(PyObject* iterator) {
  return reinterpret_cast<Layout*>(iterator);
}

// Returns the entry after `skip` others, or false if there is none or the dict has changed its size.
bool UpcomingEntry(PyObject* iterator, int64_t skip, PyObject** key, PyObject** value) {
  const auto* it = As<DictIterator>(iterator);
  if (it->dict == nullptr || it->used != PyDict_GET_SIZE(it->dict)) return false;
  Py_ssize_t at = it->position;
  for (;; --skip) {
    if (!PyDict_Next(it->dict, &at, key, value)) return false;
    if (skip == 0) return true;
  }
}

int64_t LeftOf(IteratorKind kind, PyObject* iterator) {
  const auto* it = As<SequenceIterator>(iterator);
  const auto forward = [&](Py_ssize_t length) { return std::max<int64_t>(0, length - it->index); };
  switch (kind) {
    case IteratorKind::kList:
      return it->sequence == nullptr ? 0 : forward(PyList_GET_SIZE(it->sequence));
    case IteratorKind::kTuple:
      return it->sequence == nullptr ? 0 : forward(PyTuple_GET_SIZE(it->sequence));
    case IteratorKind::kText:
      return it->sequence == nullptr ? 0 : forward(PyUnicode_GET_LENGTH(it->sequence));
    case IteratorKind::kListReversed:
      return it->sequence == nullptr || it->index >= PyList_GET_SIZE(it->sequence) ? 0 : it->index + 1;
    case IteratorKind::kTupleReversed:
      return it->sequence == nullptr || it->index >= PyTuple_GET_SIZE(it->sequence) ? 0 : it->index + 1;
    case IteratorKind::kRange: {
      const auto* range = As<RangeIterator>(iterator);
      return std::max<int64_t>(0, int64_t{range->length} - range->index);
    }
    case IteratorKind::kDictKeys:
    case IteratorKind::kDictValues:
    case IteratorKind::kDictItems: {
      const auto* dict = As<DictIterator>(iterator);
      if (dict->dict == nullptr) return 0;
      if (dict->used != PyDict_GET_SIZE(dict->dict)) return -1;
      Py_ssize_t at = dict->position;
      PyObject *key, *value;
      int64_t left = 0;
      while (PyDict_Next(dict->dict, &at, &key, &value)) ++left;
      return left;
    }
    default:
      return -1;
  }
}

PyObject* OverOf(IteratorKind kind, PyObject* iterator, int64_t i) {
  switch (kind) {
    case IteratorKind::kNone:
    case IteratorKind::kRange:
      return nullptr;
    case IteratorKind::kDictKeys:
    case IteratorKind::kDictValues:
    case IteratorKind::kDictItems:
      return i == 0 ? As<DictIterator>(iterator)->dict : nullptr;
    case IteratorKind::kEnumerate:
      return i == 0 ? As<Enumerate>(iterator)->iterator : nullptr;
    case IteratorKind::kZip:
      return i == 0 ? As<Zip>(iterator)->iterators : nullptr;
    case IteratorKind::kMap:
      return i == 0 ? As<Map>(iterator)->function : i == 1 ? As<Map>(iterator)->iterators : nullptr;
    default:
      return i == 0 ? As<SequenceIterator>(iterator)->sequence : nullptr;
  }
}

PyObject* ItemOf(IteratorKind kind, PyObject* iterator, int64_t skip) {
  PyObject *key, *value;
  if (skip < 0) return nullptr;
  if (IsOverDict(kind)) return UpcomingEntry(iterator, skip, &key, &value) ? value : nullptr;
  if (kind > IteratorKind::kTupleReversed || skip >= LeftOf(kind, iterator)) return nullptr;
  const auto* it = As<SequenceIterator>(iterator);
  const bool back = kind == IteratorKind::kListReversed || kind == IteratorKind::kTupleReversed;
  const int64_t at = back ? it->index - skip : it->index + skip;
  return PyTuple_Check(it->sequence) ? PyTuple_GET_ITEM(it->sequence, at) : PyList_GET_ITEM(it->sequence, at);
}

bool NumberOf(IteratorKind kind, PyObject* iterator, int64_t skip, int64_t* number) {
  if (skip < 0) return false;
  if (kind == IteratorKind::kEnumerate) {
    const auto* it = As<Enumerate>(iterator);
    *number = it->count + skip;
    return it->long_count == nullptr && it->count < PY_SSIZE_T_MAX - skip;
  }
  if (kind != IteratorKind::kRange || skip >= LeftOf(kind, iterator)) return false;
  const auto* it = As<RangeIterator>(iterator);
  *number = it->start + (it->index + skip) * it->step;
  return true;
}

Ref<> Evaluated(const char* expression) {
  Ref<> names = Ref<>::Steal(PyDict_New());
  if (!names || PyDict_SetItemString(names.get(), "__builtins__", PyEval_GetBuiltins()) < 0) return Ref<>();
  return Ref<>::Steal(PyRun_String(expression, Py_eval_input, names.get(), names.get()));
}

bool IsSameTuple(PyObject* a, PyObject* b) {
  if (a == nullptr || !PyTuple_CheckExact(a) || !PyTuple_CheckExact(b)) return false;
  const Py_ssize_t n = PyTuple_GET_SIZE(a);
  for (Py_ssize_t i = 0; i < n; ++i) {
    if (n != PyTuple_GET_SIZE(b) || PyTuple_GET_ITEM(a, i) != PyTuple_GET_ITEM(b, i)) return false;
  }
  return true;
}

// Whether what the layout says comes true. `iterator` is a new one over more than three items.
bool Behaves(IteratorKind kind, PyObject* iterator) {
  for (int given = 0; given < 3; ++given) {
    PyObject* item = ItemOf(kind, iterator, 0);
    PyObject *key = nullptr, *value = nullptr;
    int64_t number = 0;
    if (IsOverDict(kind) && !UpcomingEntry(iterator, 0, &key, &value)) return false;
    const bool has_number = NumberOf(kind, iterator, 0, &number);
    const int64_t left = LeftOf(kind, iterator);
    const Ref<> next = Ref<>::Steal(PyIter_Next(iterator));
    if (!next) return false;
    switch (kind) {
      case IteratorKind::kRange:
        if (!has_number || PyLong_AsLongLong(next.get()) != number) return false;
        break;
      case IteratorKind::kDictKeys:
        if (next.get() != key) return false;
        break;
      case IteratorKind::kDictItems:
        if (PyTuple_GET_ITEM(next.get(), 0) != key || PyTuple_GET_ITEM(next.get(), 1) != value) return false;
        break;
      case IteratorKind::kEnumerate:
        if (!has_number || PyLong_AsLongLong(PyTuple_GET_ITEM(next.get(), 0)) != number) return false;
        break;
      case IteratorKind::kText:
      case IteratorKind::kZip:
      case IteratorKind::kMap:
        break;
      default:
        if (next.get() != item) return false;
    }
    if (!TakesFromIterators(kind) && LeftOf(kind, iterator) != left - 1) return false;
  }
  return true;
}

struct Row {
  PyTypeObject* type;
  IteratorKind kind;
};

const std::vector<Row>& Rows() {
  static const std::vector<Row> rows = [] {
    ErrScope keep;
    std::vector<Row> found;
    constexpr auto kSequence = static_cast<Py_ssize_t>(sizeof(SequenceIterator));
    constexpr auto kDict = static_cast<Py_ssize_t>(sizeof(DictIterator));
    const struct {
      IteratorKind kind;
      Py_ssize_t size;
      const char* parts;  // a list of the containers that the iterator must name
      const char* iterator;
    } trials[] = {
        {IteratorKind::kList, kSequence, "[['a', 'b', 'c', 'd']]", "iter(p[0])"},
        {IteratorKind::kListReversed, kSequence, "[['a', 'b', 'c', 'd']]", "reversed(p[0])"},
        {IteratorKind::kTuple, kSequence, "[('a', 'b', 'c', 'd')]", "iter(p[0])"},
        {IteratorKind::kTupleReversed, kSequence, "[('a', 'b', 'c', 'd')]", "reversed(p[0])"},
        {IteratorKind::kText, kSequence, "['abcd']", "iter(p[0])"},
        {IteratorKind::kText, kSequence, "['\\u0416abcd']", "iter(p[0])"},
        {IteratorKind::kRange, sizeof(RangeIterator), "[]", "iter(range(5, 50, 3))"},
        {IteratorKind::kDictKeys, kDict, "[dict(a=1, b=2, c=3, d=4)]", "iter(p[0].keys())"},
        {IteratorKind::kDictValues, kDict, "[dict(a=1, b=2, c=3, d=4)]", "iter(p[0].values())"},
        {IteratorKind::kDictItems, kDict, "[dict(a=1, b=2, c=3, d=4)]", "iter(p[0].items())"},
        {IteratorKind::kEnumerate, sizeof(Enumerate), "[iter('abcd')]", "enumerate(p[0], 7)"},
        {IteratorKind::kZip, sizeof(Zip), "[(iter('abcd'), iter('efghi'))]", "zip(*p[0])"},
        {IteratorKind::kMap, sizeof(Map), "[max, (iter('abcd'), iter('efghi'))]", "map(p[0], *p[1])"},
    };
    for (const auto& trial : trials) {
      const Ref<> parts = Evaluated(trial.parts);
      const Ref<> make = Evaluated((std::string("lambda p: ") + trial.iterator).c_str());
      const Ref<> it = parts && make ? Ref<>::Steal(PyObject_CallOneArg(make.get(), parts.get())) : Ref<>();
      bool fits = it && Py_TYPE(it.get())->tp_basicsize == trial.size;
      for (Py_ssize_t i = 0; fits && i < PyList_GET_SIZE(parts.get()); ++i) {
        PyObject *part = OverOf(trial.kind, it.get(), i), *wanted = PyList_GET_ITEM(parts.get(), i);
        fits = part == wanted || (trial.kind >= IteratorKind::kZip && IsSameTuple(part, wanted));
      }
      if (fits && Behaves(trial.kind, it.get())) found.push_back({Py_TYPE(it.get()), trial.kind});
      PyErr_Clear();
    }
    return found;
  }();
  return rows;
}

}  // namespace

void TryIterators() { Rows(); }

IteratorKind KindOfIterator(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  if (type->tp_iternext == nullptr || (type->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0) return IteratorKind::kNone;
  for (const Row& row : Rows()) {
    if (row.type != type) continue;
    const auto* it = As<SequenceIterator>(object);
    const bool is_reversed = row.kind == IteratorKind::kTupleReversed;
    if (is_reversed && it->sequence != nullptr && !PyTuple_CheckExact(it->sequence)) return IteratorKind::kNone;
    if (row.kind == IteratorKind::kZip && As<Zip>(object)->strict) return IteratorKind::kNone;
    return row.kind;
  }
  return IteratorKind::kNone;
}

int64_t ItemsLeft(PyObject* iterator) { return LeftOf(KindOfIterator(iterator), iterator); }

PyObject* IteratedOver(PyObject* iterator, int64_t i) { return OverOf(KindOfIterator(iterator), iterator, i); }

PyObject* UpcomingItem(PyObject* iterator, int64_t skip) {
  const IteratorKind kind = KindOfIterator(iterator);
  return kind == IteratorKind::kNone ? nullptr : ItemOf(kind, iterator, skip);
}

PyObject* UpcomingKey(PyObject* iterator, int64_t skip) {
  PyObject *key, *value;
  return skip >= 0 && IsOverDict(KindOfIterator(iterator)) && UpcomingEntry(iterator, skip, &key, &value) ? key
                                                                                                          : nullptr;
}

bool UpcomingNumber(PyObject* iterator, int64_t skip, int64_t* number) {
  return NumberOf(KindOfIterator(iterator), iterator, skip, number);
}

IteratorPlace::IteratorPlace(PyObject* iterator) : iterator_(iterator) {
  const IteratorKind kind = KindOfIterator(iterator);
  if (TakesFromIterators(kind)) {
    if (kind == IteratorKind::kEnumerate) {
      index_ = As<Enumerate>(iterator)->count;
      parts_.emplace_back(As<Enumerate>(iterator)->iterator);
      return;
    }
    PyObject* parts = kind == IteratorKind::kZip ? As<Zip>(iterator)->iterators : As<Map>(iterator)->iterators;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parts); ++i) parts_.emplace_back(PyTuple_GET_ITEM(parts, i));
  } else if (kind == IteratorKind::kRange) {
    index_ = As<RangeIterator>(iterator)->index;
  } else if (IsOverDict(kind)) {
    const auto* it = As<DictIterator>(iterator);
    over_ = Ref<>::New(it->dict);
    index_ = it->position;
    left_ = it->left;
  } else if (kind != IteratorKind::kNone) {
    over_ = Ref<>::New(As<SequenceIterator>(iterator)->sequence);
    index_ = As<SequenceIterator>(iterator)->index;
  }
}

void IteratorPlace::PutBack() {
  PyObject* iterator = iterator_;
  const IteratorKind kind = KindOfIterator(iterator);
  // An iterator at its end has released its container.
  const auto put = [&](PyObject** place) {
    PyObject* old = std::exchange(*place, Ref<>(over_).Release());
    Py_XDECREF(old);
  };
  if (TakesFromIterators(kind)) {
    if (kind == IteratorKind::kEnumerate) As<Enumerate>(iterator)->count = index_;
    for (auto part = parts_.rbegin(); part != parts_.rend(); ++part) part->PutBack();
  } else if (kind == IteratorKind::kRange) {
    As<RangeIterator>(iterator)->index = index_;
  } else if (IsOverDict(kind)) {
    auto* it = As<DictIterator>(iterator);
    put(&it->dict);
    it->position = index_;
    it->left = left_;
  } else if (kind != IteratorKind::kNone) {
    put(&As<SequenceIterator>(iterator)->sequence);
    As<SequenceIterator>(iterator)->index = index_;
  }
}

}  // namespace frametap
