// GuardParameter: what a guard is made of, beside the object at its source. The row of its kind in predicates.def has the type.
#pragma once

#include <Python.h>

#include <cstdint>
#include <type_traits>

namespace frametap {

struct GuardParameter {
  int64_t number = 0;
  PyObject* object = nullptr;  // compared by identity; the guard keeps it alive if it reads it later

  template <class T>
  T As() const {
    if constexpr (std::is_same_v<T, PyObject*>) {
      return object;
    } else {
      static_assert(std::is_same_v<T, int64_t>, "a row of predicates.def has another type of parameter");
      return number;
    }
  }
};

}  // namespace frametap
