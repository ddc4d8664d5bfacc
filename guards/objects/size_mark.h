// SizeMark: a user's declaration of a size, as attributes of the tensor. frametap.mark_dynamic and mark_static set the
// same attributes as torch._dynamo.
#pragma once

#include <Python.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

namespace frametap {

struct SizeMark {
  bool is_static = false;
  bool has_range = false;  // a promise: the program takes one branch for all of it
  int64_t least = 0, most = std::numeric_limits<int64_t>::max();

  std::string Text() const;  // "from 2 to 64"
};

// Whether a tensor has any marks; a look at one field for those without attributes.
bool HasSizeMarks(PyObject* tensor);

// A mark as dynamic counts more than one as static.
std::optional<SizeMark> SizeMarkOf(PyObject* tensor, int64_t dim);

}  // namespace frametap
