// Type: what is known of a graph value. Sizes are those seen while recording; they are hints unless a guard or a
// backend's assumption says otherwise.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"

namespace frametap {

// For a tensor, outermost first. Thousands are made in a recording: few tensors have more dimensions.
using Sizes = absl::InlinedVector<int64_t, 4>;

struct Type {
  enum class Kind : uint8_t { kNone, kTensor, kTensorList, kInt, kFloat, kBool, kOpaque };

  Kind kind = Kind::kNone;
  // kTensor only:
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  Sizes sizes;  // -1 if unknown
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  bool requires_grad = false;

  static Type Of(const at::Tensor& tensor);
  static Type Scalar(Kind kind) {
    Type t;
    t.kind = kind;
    return t;
  }
  bool is_number() const { return kind == Kind::kInt || kind == Kind::kFloat || kind == Kind::kBool; }
  friend bool operator==(const Type& a, const Type& b) {
    return a.kind == b.kind && a.dtype == b.dtype && a.sizes == b.sizes && a.device == b.device;
  }
};

// `f32[8, 64]`, `i64[]`, `f32[?, 3] cuda:0` (the device only when it is not cpu), `int`, `float`, `bool`, `none`,
// `tensors`, `opaque`.
std::string ToString(const Type& type);
// With these words for the sizes of a tensor.
std::string ToString(const Type& type, const std::vector<std::string>& sizes);
// f32 f64 f16 bf16 i8 i16 i32 i64 u8 bool c64 c128 …; `ToString(Type)` prints the same names.
std::string DtypeName(c10::ScalarType dtype);
std::optional<c10::ScalarType> ParseDtype(const std::string& name);

}  // namespace frametap
