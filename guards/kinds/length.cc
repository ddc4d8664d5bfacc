#include "guards/kinds/length.h"

#include "absl/strings/str_cat.h"
#include "guards/cpython/deque_view.h"
#include "guards/cpython/watch.h"

namespace frametap {

LengthGuard::LengthGuard(PyObject* container, Py_ssize_t length)
    : Guard(Kind::kLength), length_(length), of_dict_(PyDict_Check(container)) {
  if (length < 0) CountOf(container, &length_);
}

bool LengthGuard::CountOf(PyObject* object, Py_ssize_t* count) {
  if (PyDict_Check(object)) {
    *count = PyDict_GET_SIZE(object);
  } else if (PyList_Check(object) || PyTuple_Check(object)) {
    *count = Py_SIZE(object);
  } else if (PyAnySet_Check(object)) {
    *count = PySet_GET_SIZE(object);
  } else if (PyUnicode_Check(object)) {
    *count = PyUnicode_GET_LENGTH(object);
  } else if (PyBytes_Check(object)) {
    *count = PyBytes_GET_SIZE(object);
  } else if (IsDeque(object)) {
    *count = DequeLength(object);
  } else {
    return false;
  }
  return true;
}

bool LengthGuard::Holds(const Reached& at) const {
  Py_ssize_t count;
  return at.object != nullptr && CountOf(at.object, &count) && count == length_ &&
         static_cast<bool>(PyDict_Check(at.object)) == of_dict_;
}

bool LengthGuard::Words(const Reached& at, frametap::Words* words) const {
  if (PyDict_Check(at.object)) {
    words->emplace_back(DictLengthPlace(at.object));
  } else if (PyList_Check(at.object) || IsDeque(at.object)) {
    words->emplace_back(&reinterpret_cast<PyVarObject*>(at.object)->ob_size);
  } else {
    return !PyAnySet_Check(at.object);  // others have the length that they were made with
  }
  return true;
}

static Predicate Says(Py_ssize_t length) { return {Predicate::Form::kLength, int64_t{length}}; }

Predicate LengthGuard::Want() const { return Says(length_); }

std::string LengthGuard::Got(const Reached& at) const {
  Py_ssize_t count;
  return at.object != nullptr && CountOf(at.object, &count) ? ToString(Says(count)) : Guard::Got(at);
}

std::string LengthGuard::Why(const Reached& at) const {
  Py_ssize_t count;
  if (at.object == nullptr || !CountOf(at.object, &count)) return "it has no length";
  if (static_cast<bool>(PyDict_Check(at.object)) != of_dict_) return of_dict_ ? "it is not a dict" : "it is a dict";
  if (PyDict_Check(at.object) && count == length_ + 1) return "a key was added";
  if (PyDict_Check(at.object) && count == length_ - 1) return "a key was removed";
  return absl::StrCat("length: ", count, " != ", length_);
}

}  // namespace frametap
