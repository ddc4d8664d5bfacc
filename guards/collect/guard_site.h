// GuardSite: an instruction of the program. A recording keeps thousands of them, so the position is made when it is printed.
//   (The way to lines and columns is private to each version of CPython, in frame_eval/cpython/3.x.)
#pragma once

#include <Python.h>

#include "ir/graph/position.h"

namespace frametap {

struct GuardSite {
  PyCodeObject* code = nullptr;  // borrowed; null: nowhere
  int offset = 0;                // in bytes
};

using TellPosition = Position (*)(PyCodeObject* code, int offset);
inline constinit TellPosition tell_position = nullptr;  // null: no spot has a position

inline Position PositionOf(const GuardSite& spot) {
  return spot.code == nullptr || tell_position == nullptr ? Position() : tell_position(spot.code, spot.offset);
}

}  // namespace frametap
