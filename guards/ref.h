// Ref: ownership in the type; a scope of the error indicator.
//   R1  Ref owns one reference and dies only with Python's lock held; an empty Ref from a C-API call means "raised".
//   R2  Ref::Steal and Ref::New are the only ways from a pointer to a Ref.
#pragma once

#include <Python.h>

#include <utility>

namespace frametap {

template <class T = PyObject>
class Ref {
 public:
  Ref() = default;
  static Ref Steal(T* p) { return Ref(p); }
  static Ref New(T* p) {
    Py_XINCREF(reinterpret_cast<PyObject*>(p));
    return Ref(p);
  }
  Ref(const Ref& o) : p_(o.p_) { Py_XINCREF(reinterpret_cast<PyObject*>(p_)); }
  Ref(Ref&& o) noexcept : p_(std::exchange(o.p_, nullptr)) {}
  Ref& operator=(Ref o) noexcept {
    std::swap(p_, o.p_);
    return *this;
  }
  ~Ref() { Py_XDECREF(reinterpret_cast<PyObject*>(p_)); }

  T* get() const { return p_; }
  T* Release() { return std::exchange(p_, nullptr); }
  explicit operator bool() const { return p_ != nullptr; }

 private:
  explicit Ref(T* p) : p_(p) {}
  T* p_ = nullptr;
};

// Saves the error indicator and puts it back: for code that must leave it as it found it.
class ErrScope {
 public:
  // `indicator`: this thread's, for who has looked it up before. It is null while no exception is set.
  // Inline, as one stands around each operation of a recording.
  [[gnu::always_inline]] explicit ErrScope(PyObject* const* indicator = nullptr) : indicator_(indicator) {
    if (IsSet()) [[unlikely]]
      PyErr_Fetch(&type_, &value_, &traceback_);
  }
  [[gnu::always_inline]] ~ErrScope() {
    if (type_ != nullptr || IsSet()) [[unlikely]]
      PyErr_Restore(type_, value_, traceback_);
  }
  ErrScope(const ErrScope&) = delete;
  ErrScope& operator=(const ErrScope&) = delete;

 private:
  bool IsSet() const { return indicator_ != nullptr ? *indicator_ != nullptr : PyErr_Occurred() != nullptr; }

  PyObject* const* const indicator_;
  PyObject *type_ = nullptr, *value_ = nullptr, *traceback_ = nullptr;
};

}  // namespace frametap
