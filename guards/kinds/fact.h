// Fact: what an object must be like for a guard to hold, as a number.
//   X1  Where a guard holds, the object's key is the guard's: unequal keys are a miss. Equal ones prove nothing.
//   X2  Reading a key runs no Python code, raises nothing and is safe on any object.
#pragma once

#include <Python.h>

#include <cstdint>

#include "absl/hash/hash.h"
#include "guards/kinds/accessor.h"

namespace frametap {

struct Fact {
  enum class Kind : uint8_t {
    kValue,   // type, and value of plain scalars
    kLength,  // of a container
    kType,
    kObject,  // which one
    kCode,    // of a function
    kTensor,  // dtype, rank, dispatch keys, requires_grad
    kSizes,   // of a tensor, strides not included
  };
  Kind kind;
  uint64_t key;

  static uint64_t KeyOf(const void* object) { return absl::HashOf(object); }  // kType, kObject, kCode
  static uint64_t KeyAt(Kind kind, const Reached& at);
  static Fact Of(Kind kind, const Reached& at) { return {kind, KeyAt(kind, at)}; }
};

}  // namespace frametap
