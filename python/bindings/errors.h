// From Status and C++ exceptions to Python's: the one map.
//   E1  A Status becomes a class of frametap._errors.
//   E2  A C++ exception of a torch op becomes what torch's own bindings would raise.
#pragma once

#include <pybind11/pybind11.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace frametap {

// `exception`: a class of frametap._errors ("BackendError"). Needs Python's lock.
[[noreturn]] void Throw(const absl::Status& status, const char* exception);

inline void ThrowIfError(const absl::Status& status, const char* exception) {
  if (!status.ok()) Throw(status, exception);
}

template <class T>
T ValueOrThrow(absl::StatusOr<T> value, const char* exception) {
  if (!value.ok()) Throw(value.status(), exception);
  return *std::move(value);
}

}  // namespace frametap
