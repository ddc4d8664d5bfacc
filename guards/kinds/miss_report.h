// The verdict on a call, and a miss in words.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/graph/position.h"

namespace frametap {

enum class Verdict : uint8_t { kHit, kMiss, kError };

// A miss in words: printed as in the dump.
struct MissReport {
  std::string source;      // "L.x"
  std::string want;        // "tensor f32[*, 32] cpu"
  std::string got;         // "tensor f64[4, 32] cpu"
  std::string why;         // "dtype: f64 != f32"
  Position line;           // what made the guard
  bool of_number = false;  // an int or float has another value
  bool of_size = false;    // a tensor has other sizes or strides
  // The places that a recording may leave open, too: numbers that come later in the order of the guards, an object, a length.
  std::vector<std::string> other_places = {};
};

}  // namespace frametap
