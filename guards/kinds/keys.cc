#include "guards/kinds/keys.h"

#include "absl/strings/str_cat.h"
#include "guards/kinds/needs_python.h"
#include "guards/objects/value.h"
#include "guards/throw_if_null.h"

namespace frametap {

namespace {

constexpr Py_ssize_t kMaxShown = 8;

// Calls f(key) in the dict's order until it says no. Returns false if it did. Also returns false, with no exception set, for
// an OrderedDict that was changed by methods of dict: a key of its order is not in its table.
template <class F>
bool ForEachKey(PyObject* dict, F&& f) {
  PyObject *key, *value;
  if (KeysGuard::OrderIsWatched(dict)) {
    Py_ssize_t at = 0;
    while (PyDict_Next(dict, &at, &key, &value)) {
      if (!f(key)) return false;
    }
    return true;
  }
  const Ref<> it = Must(PyODict_Type.tp_iter(dict));  // C code; the keys stay alive in the dict
  while ((key = PyIter_Next(it.get())) != nullptr) {
    Py_DECREF(key);
    if (!f(key)) return false;
  }
  if (PyErr_Occurred() == nullptr) return true;
  if (PyErr_ExceptionMatches(PyExc_MemoryError)) throw std::bad_alloc();
  PyErr_Clear();
  return false;
}

Predicate Says(PyObject* keys) {
  std::string text = "[";
  const Py_ssize_t n = PyTuple_GET_SIZE(keys);
  for (Py_ssize_t i = 0; i < n && i < kMaxShown; ++i) {
    absl::StrAppend(&text, i > 0 ? ", " : "", ShortRepr(PyTuple_GET_ITEM(keys, i)));
  }
  if (n > kMaxShown) absl::StrAppend(&text, ", ... ", n - kMaxShown, " more");
  return {Predicate::Form::kKeys, absl::StrCat(text, "]")};
}

// The key itself, or an equal one that the program cannot distinguish by its type.
bool IsKey(PyObject* a, PyObject* b) { return a == b || (IsPlainValue(a) && SameValue(a, b)); }

bool Contains(PyObject* keys, PyObject* key) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keys); ++i) {
    if (IsKey(PyTuple_GET_ITEM(keys, i), key)) return true;
  }
  return false;
}

}  // namespace

Ref<> KeysInOrder(PyObject* dict) {
  ErrScope keep;
  const Ref<> list = Must(PyList_New(0));
  const auto append = [&list](PyObject* key) { return PyList_Append(list.get(), key) == 0; };
  if (!ForEachKey(dict, append) && PyErr_Occurred() != nullptr) throw std::bad_alloc();
  return Must(PyList_AsTuple(list.get()));
}

bool KeysGuard::OrderIsWatched(PyObject* dict) { return !PyODict_Check(dict); }

KeysGuard::KeysGuard(PyObject* dict) : Guard(Kind::kKeys), keys_(KeysInOrder(dict)), size_(PyDict_GET_SIZE(dict)) {}

bool KeysGuard::Holds(const Reached& at) const {
  PyObject* keys = keys_.get();
  if (at.object == nullptr || !PyDict_Check(at.object) || PyDict_GET_SIZE(at.object) != size_) {
    return false;
  }
  Py_ssize_t i = 0;
  const Py_ssize_t n = PyTuple_GET_SIZE(keys);
  return ForEachKey(at.object,
                    [&](PyObject* key) {
                      const bool same = i < n && IsKey(PyTuple_GET_ITEM(keys, i), key);
                      ++i;
                      return same;
                    }) &&
         i == n;
}

Predicate KeysGuard::Want() const { return Says(keys_.get()); }

std::string KeysGuard::Got(const Reached& at) const {
  if (at.object == nullptr || !PyDict_Check(at.object)) return Guard::Got(at);
  return ToString(Says(KeysInOrder(at.object).get()));
}

std::string KeysGuard::Why(const Reached& at) const {
  if (at.object == nullptr || !PyDict_Check(at.object)) return "it is not a dict";
  Ref<> got = KeysInOrder(at.object);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keys_.get()); ++i) {
    PyObject* key = PyTuple_GET_ITEM(keys_.get(), i);
    if (!Contains(got.get(), key)) return absl::StrCat("key ", ShortRepr(key), " is missing");
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(got.get()); ++i) {
    PyObject* key = PyTuple_GET_ITEM(got.get(), i);
    if (!Contains(keys_.get(), key)) return absl::StrCat("key ", ShortRepr(key), " was added");
  }
  return "the order of the keys has changed";
}

int KeysGuard::Traverse(visitproc visit, void* arg) const {
  Py_VISIT(keys_.get());
  return 0;
}

bool KeyGuard::Holds(const Reached& at) const {
  if (at.object == nullptr) return false;
  PyObject* dict = DictAt(dict_, at.object);
  if (dict == nullptr) return !present_;
  PyObject* unused;
  return IsReadable(dict_, dict) && DictGet(dict, key_, &unused) == (present_ ? Found::kYes : Found::kNo);
}

static Predicate Says(bool present, const Key& key) {
  return {present ? Predicate::Form::kHas : Predicate::Form::kAbsent, ShortRepr(key.object.get())};
}

Predicate KeyGuard::Want() const { return Says(present_, key_); }

std::string KeyGuard::Got(const Reached& at) const {
  if (at.object == nullptr) return Guard::Got(at);
  return ToString(Says(!present_, key_));
}

std::string KeyGuard::Why(const Reached& at) const {
  const char* what = dict_ == DictOf::kInstance ? "attribute " : dict_ == DictOf::kGlobals ? "global " : "key ";
  const std::string key = ShortRepr(key_.object.get());
  PyObject* dict = at.object != nullptr ? DictAt(dict_, at.object) : nullptr;
  PyObject* unused;
  if (dict != nullptr && (!IsReadable(dict_, dict) || DictGet(dict, key_, &unused) == Found::kDoubt)) {
    return absl::StrCat(what, key, kNeedsPython);
  }
  return absl::StrCat(what, key, present_ ? " is missing" : " is present");
}

int KeyGuard::Traverse(visitproc visit, void* arg) const {
  Py_VISIT(key_.object.get());
  return 0;
}

}  // namespace frametap
