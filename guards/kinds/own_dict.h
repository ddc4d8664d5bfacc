// The index of a kDict step that also fits an object without a dict.
#pragma once

#include <cstdint>

namespace frametap {

// An object of C code (an exception, the context of an autograd.Function) gets its dict with its first attribute. Where
// the trace writes that attribute, a call finds none before it. The step leads to None then, which no dict is.
constexpr int64_t kDictOrNone = 1;

}  // namespace frametap
