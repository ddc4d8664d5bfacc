// Iteration and unpacking.
#include <utility>
#include <vector>

#include "frame_eval/interpreter/interpreter.h"

namespace frametap::opcodes {
namespace {

// The items of an unpacking while they are gathered, first item first.
class Items {
 public:
  explicit Items(int expected) { items_.reserve(expected); }
  ~Items() {
    for (PyObject* item : items_) Py_XDECREF(item);
  }
  Items(const Items&) = delete;
  Items& operator=(const Items&) = delete;
  void Add(PyObject* owned) { items_.push_back(owned); }
  int size() const { return static_cast<int>(items_.size()); }
  PyObject* Take(int i) { return std::exchange(items_[i], nullptr); }
  PyObject* operator[](int i) const { return items_[i]; }

 private:
  std::vector<PyObject*> items_;
};

// `after` < 0 means exactly `before` items. Otherwise a list of the middle items comes between. Returns false if this
// raised.
bool Gather(PyObject* sequence, int before, int after, Items* items) {
  PyObject* iterator = PyObject_GetIter(sequence);
  if (iterator == nullptr) {
    if (PyErr_ExceptionMatches(PyExc_TypeError) && Py_TYPE(sequence)->tp_iter == nullptr &&
        !PySequence_Check(sequence)) {
      PyErr_Format(PyExc_TypeError, "cannot unpack non-iterable %.200s object", Py_TYPE(sequence)->tp_name);
    }
    return false;
  }
  bool done = [&] {
    while (items->size() < before) {
      PyObject* item = PyIter_Next(iterator);
      if (item == nullptr) {
        if (PyErr_Occurred()) return false;
        if (after < 0) {
          PyErr_Format(PyExc_ValueError, "not enough values to unpack (expected %d, got %d)", before, items->size());
        } else {
          PyErr_Format(PyExc_ValueError, "not enough values to unpack (expected at least %d, got %d)", before + after,
                       items->size());
        }
        return false;
      }
      items->Add(item);
    }
    if (after < 0) {
      PyObject* surplus = PyIter_Next(iterator);
      if (surplus == nullptr) return !PyErr_Occurred();
      Py_DECREF(surplus);
      PyErr_Format(PyExc_ValueError, "too many values to unpack (expected %d)", before);
      return false;
    }
    PyObject* rest = PySequence_List(iterator);
    if (rest == nullptr) return false;
    items->Add(rest);
    Py_ssize_t n = PyList_GET_SIZE(rest);
    if (n < after) {
      PyErr_Format(PyExc_ValueError, "not enough values to unpack (expected at least %d, got %zd)", before + after,
                   before + n);
      return false;
    }
    for (Py_ssize_t i = n - after; i < n; ++i) items->Add(Py_NewRef(PyList_GET_ITEM(rest, i)));
    return after == 0 || PyList_SetSlice(rest, n - after, n, nullptr) == 0;
  }();
  Py_DECREF(iterator);
  return done;
}

// Puts the items where the sequence was, the first on top.
Step Spread(Execution& m, Operation& op, Items& items) {
  int n = items.size();
  if (n == 0) op.Succeeded(nullptr);
  PyObject* sequence = m.Pop();
  m.top += n;
  for (int i = 0; i < n; ++i) {
    op.SetArg(i);
    PyObject** slot = m.top - 1 - i;
    // The tracer reads the operand from the lowest slot until the last item is reported.
    Shadow shadow = op.Succeeded(items[i]);
    *m.ShadowOf(slot) = shadow;
  }
  for (int i = 0; i < n; ++i) m.Peek(i + 1) = items.Take(i);
  Py_DECREF(sequence);
  return Step::kNext;
}

Step Unpack(Execution& m, Op kind, int arg, int before, int after) {
  Operation op(m, kind, 1, arg);
  PyObject* sequence = m.Peek(1);
  Items items(before + (after < 0 ? 0 : after + 1));
  bool tuple = PyTuple_CheckExact(sequence);
  if (after < 0 && (tuple || PyList_CheckExact(sequence)) && Py_SIZE(sequence) == before) {
    for (int i = 0; i < before; ++i) {
      items.Add(Py_NewRef(tuple ? PyTuple_GET_ITEM(sequence, i) : PyList_GET_ITEM(sequence, i)));
    }
  } else if (!Gather(sequence, before, after, &items)) {
    return op.Raised();
  }
  return Spread(m, op, items);
}

}  // namespace

OPCODE(GetIter, "iterable -- iterator") {
  Operation op(m, Op::kGetIter, 1);
  return op.Replace(1, PyObject_GetIter(m.Peek(1)));
}

OPCODE(ForIter, "iterator -- iterator item | (at the end)") {
  Operation op(m, Op::kForIter, 1);
  PyObject* iterator = m.Peek(1);
  PyObject* item = Py_TYPE(iterator)->tp_iternext(iterator);
  if (item != nullptr) return op.Push(item);
  if (PyErr_Occurred()) {
    if (!PyErr_ExceptionMatches(PyExc_StopIteration)) return op.Raised();
    PyErr_Clear();
  }
  op.Succeeded(nullptr);
  m.Drop();
  m.next += arg;
  return Step::kNext;
}

OPCODE(UnpackSequence, "sequence -- last … first") { return Unpack(m, Op::kUnpack, arg, arg, -1); }

OPCODE(UnpackEx, "sequence -- last … middle … first") { return Unpack(m, Op::kUnpackEx, arg, arg & 0xff, arg >> 8); }

}  // namespace frametap::opcodes
