#include "ir/graph/type.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace frametap {
namespace {

struct DtypeRow {
  c10::ScalarType dtype;
  const char* name;
};

constexpr DtypeRow kDtypes[] = {
    {c10::ScalarType::Float, "f32"},        {c10::ScalarType::Double, "f64"},
    {c10::ScalarType::Half, "f16"},         {c10::ScalarType::BFloat16, "bf16"},
    {c10::ScalarType::Char, "i8"},          {c10::ScalarType::Short, "i16"},
    {c10::ScalarType::Int, "i32"},          {c10::ScalarType::Long, "i64"},
    {c10::ScalarType::Byte, "u8"},          {c10::ScalarType::UInt16, "u16"},
    {c10::ScalarType::UInt32, "u32"},       {c10::ScalarType::UInt64, "u64"},
    {c10::ScalarType::Bool, "bool"},        {c10::ScalarType::ComplexHalf, "c32"},
    {c10::ScalarType::ComplexFloat, "c64"}, {c10::ScalarType::ComplexDouble, "c128"},
    {c10::ScalarType::QInt8, "qi8"},        {c10::ScalarType::QUInt8, "qu8"},
    {c10::ScalarType::QInt32, "qi32"},      {c10::ScalarType::QUInt4x2, "qu4x2"},
    {c10::ScalarType::QUInt2x4, "qu2x4"},   {c10::ScalarType::Undefined, "undefined"},
};

// The rarer ones keep torch's own name, in small letters: f8 formats, sub-byte integers, raw bits.
std::string Lower(const char* name) {
  std::string out = name;
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

}  // namespace

Type Type::Of(const at::Tensor& tensor) {
  Type t;
  t.kind = Kind::kTensor;
  if (!tensor.defined()) return t;
  // A nested tensor has no sizes to print.
  if (tensor.is_nested()) {
    t.kind = Kind::kOpaque;
    return t;
  }
  t.dtype = tensor.scalar_type();
  t.device = tensor.device();
  t.requires_grad = tensor.requires_grad();
  if (const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl(); !impl.has_symbolic_sizes_strides()) {
    t.sizes.assign(impl.sizes().begin(), impl.sizes().end());
    return t;
  }
  for (const c10::SymInt& size : tensor.sym_sizes()) t.sizes.push_back(size.maybe_as_int().value_or(-1));
  return t;
}

std::string ToString(const Type& type) {
  switch (type.kind) {
    case Type::Kind::kNone:
      return "none";
    case Type::Kind::kTensorList:
      return "tensors";
    case Type::Kind::kInt:
      return "int";
    case Type::Kind::kFloat:
      return "float";
    case Type::Kind::kBool:
      return "bool";
    case Type::Kind::kOpaque:
      return "opaque";
    case Type::Kind::kTensor:
      break;
  }
  std::vector<std::string> sizes;
  for (const int64_t size : type.sizes) sizes.push_back(size < 0 ? "?" : absl::StrCat(size));
  return ToString(type, sizes);
}

std::string ToString(const Type& type, const std::vector<std::string>& sizes) {
  if (type.kind != Type::Kind::kTensor) return ToString(type);
  std::string out = absl::StrCat(DtypeName(type.dtype), "[", absl::StrJoin(sizes, ", "), "]");
  if (type.device != c10::Device(c10::DeviceType::CPU)) absl::StrAppend(&out, " ", type.device.str());
  return out;
}

std::string DtypeName(c10::ScalarType dtype) {
  for (const DtypeRow& row : kDtypes) {
    if (row.dtype == dtype) return row.name;
  }
  return Lower(c10::toString(dtype));
}

std::optional<c10::ScalarType> ParseDtype(const std::string& name) {
  for (const DtypeRow& row : kDtypes) {
    if (name == row.name) return row.dtype;
  }
  for (int i = 0; i < static_cast<int>(c10::ScalarType::NumOptions); ++i) {
    const auto dtype = static_cast<c10::ScalarType>(i);
    if (DtypeName(dtype) == name) return dtype;
  }
  return std::nullopt;
}

}  // namespace frametap
