#include "guards/kinds/tensor.h"

#include <c10/core/TensorImpl.h>

#include "absl/strings/str_cat.h"
#include "guards/kinds/value.h"
#include "guards/tensor_door.h"
#include "ir/type.h"

namespace frametap {

namespace {

std::string Join(const std::vector<int64_t>& numbers, const std::vector<bool>* shown) {
  std::string text;
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) text += ", ";
    text += shown == nullptr || (*shown)[i] ? std::to_string(numbers[i]) : "*";
  }
  return text;
}

bool HasStrides(const c10::TensorImpl& impl) {
  return impl.layout() == c10::Layout::Strided;
}

std::string DeviceName(int8_t type, int8_t index) {
  return c10::Device(static_cast<c10::DeviceType>(type), index).str();
}

const char* WithGrad(bool requires_grad) {
  return requires_grad ? "requires grad" : "no grad";
}

}  // namespace

TensorGuard::TensorGuard(PyObject* tensor)
    : Guard(Kind::kTensor), type_(Ref<PyTypeObject>::New(Py_TYPE(tensor))), facts_(FactsOf(tensor)) {}

TensorGuard::Facts TensorGuard::FactsOf(PyObject* tensor) {
  const c10::TensorImpl& impl = *TensorOf(tensor).unsafeGetTensorImpl();
  Facts f;
  f.keys = impl.key_set().raw_repr();
  f.dtype = static_cast<int8_t>(c10::typeMetaToScalarType(impl.dtype()));
  const c10::Device device = impl.device();
  f.device_type = static_cast<int8_t>(device.type());
  f.device_index = device.index();
  f.requires_grad = impl.requires_grad();
  f.rank = static_cast<int32_t>(impl.dim());
  f.offset = false;
  if (impl.has_symbolic_sizes_strides() || impl.is_nested()) return f;
  f.sizes = impl.sizes().vec();
  if (HasStrides(impl)) {
    f.strides = impl.strides().vec();
    f.offset = impl.storage_offset() != 0;
  }
  return f;
}

void TensorGuard::Read(const TensorRead& read) {
  read_.sizes |= read.sizes | read.strides;
  read_.strides |= read.strides;
  read_.dims |= read.dims;
  reads_shape_ = read_.sizes || read_.dims != 0;
}

bool TensorGuard::BasicsHold(PyObject* object) const {
  if (Py_TYPE(object) != type_.get()) return false;
  const c10::TensorImpl& impl = *TensorOf(object).unsafeGetTensorImpl();
  const c10::Device device = impl.device();
  return impl.key_set().raw_repr() == facts_.keys &&
         static_cast<int8_t>(c10::typeMetaToScalarType(impl.dtype())) == facts_.dtype &&
         !impl.has_symbolic_sizes_strides() && impl.dim() == facts_.rank &&
         static_cast<int8_t>(device.type()) == facts_.device_type && device.index() == facts_.device_index &&
         impl.requires_grad() == facts_.requires_grad;
}

bool TensorGuard::Holds(PyObject* object) const {
  if (!BasicsHold(object)) return false;
  if (!reads_shape_) return true;
  const c10::TensorImpl& impl = *TensorOf(object).unsafeGetTensorImpl();
  const c10::IntArrayRef sizes = impl.sizes();
  if (sizes.size() != facts_.sizes.size()) return false;
  if (read_.sizes && sizes != c10::IntArrayRef(facts_.sizes)) return false;
  for (uint64_t left = read_.dims; left != 0; left &= left - 1) {
    const size_t i = static_cast<size_t>(__builtin_ctzll(left));
    if (i < sizes.size() && sizes[i] != facts_.sizes[i]) return false;
  }
  if (!read_.strides || !HasStrides(impl)) return true;
  return impl.strides() == c10::IntArrayRef(facts_.strides) && (impl.storage_offset() != 0) == facts_.offset;
}

std::string TensorGuard::Text(const Facts& facts, const TensorRead& shown) {
  std::vector<bool> mask(facts.sizes.size());
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = shown.sizes || (i < 64 && (shown.dims >> i & 1) != 0);
  std::string text =
      absl::StrCat("tensor ", DtypeName(static_cast<c10::ScalarType>(facts.dtype)), "[", Join(facts.sizes, &mask), "]");
  if (shown.strides) absl::StrAppend(&text, "{", Join(facts.strides, nullptr), "}", facts.offset ? " offset" : "");
  absl::StrAppend(&text, " ", DeviceName(facts.device_type, facts.device_index), facts.requires_grad ? " grad" : "");
  return text;
}

std::string TensorGuard::Want() const {
  return Text(facts_, read_);
}

std::string TensorGuard::Got(const Reached& at) const {
  if (at.object == nullptr || !IsTensor(at.object)) return Guard::Got(at);
  TensorRead shown;
  shown.sizes = true;
  shown.strides = read_.strides;
  return Text(FactsOf(at.object), shown);
}

std::string TensorGuard::Why(const Reached& at) const {
  PyObject* object = at.object;
  if (object == nullptr) return "a number";
  if (Py_TYPE(object) != type_.get()) {
    return absl::StrCat("type: ", TypeName(Py_TYPE(object)), " != ", TypeName(type_.get()));
  }
  const Facts got = FactsOf(object);
  const auto differ = [](const std::string& what, const std::string& a, const std::string& b) {
    return absl::StrCat(what, ": ", a, " != ", b);
  };
  if (got.dtype != facts_.dtype) {
    return differ("dtype", DtypeName(static_cast<c10::ScalarType>(got.dtype)),
                  DtypeName(static_cast<c10::ScalarType>(facts_.dtype)));
  }
  if (got.device_type != facts_.device_type || got.device_index != facts_.device_index) {
    return differ("device", DeviceName(got.device_type, got.device_index),
                  DeviceName(facts_.device_type, facts_.device_index));
  }
  if (got.rank != facts_.rank) return differ("rank", std::to_string(got.rank), std::to_string(facts_.rank));
  if (got.requires_grad != facts_.requires_grad) {
    return differ("requires_grad", WithGrad(got.requires_grad), WithGrad(facts_.requires_grad));
  }
  if (TensorOf(object).unsafeGetTensorImpl()->has_symbolic_sizes_strides()) return "sizes are symbolic";
  if (got.keys != facts_.keys) {
    return differ("dispatch keys", c10::toString(c10::DispatchKeySet(c10::DispatchKeySet::RAW, got.keys)),
                  c10::toString(c10::DispatchKeySet(c10::DispatchKeySet::RAW, facts_.keys)));
  }
  for (size_t i = 0; i < facts_.sizes.size(); ++i) {
    if (!(read_.sizes || (i < 64 && (read_.dims >> i & 1) != 0)) || got.sizes[i] == facts_.sizes[i]) continue;
    return differ(absl::StrCat("dim ", i), std::to_string(got.sizes[i]), std::to_string(facts_.sizes[i]));
  }
  if (!read_.strides) return "";
  for (size_t i = 0; i < facts_.strides.size(); ++i) {
    if (got.strides[i] == facts_.strides[i]) continue;
    return differ(absl::StrCat("stride ", i), std::to_string(got.strides[i]), std::to_string(facts_.strides[i]));
  }
  if (got.offset != facts_.offset) return got.offset ? "storage offset is not 0" : "storage offset is 0";
  return "";
}

int TensorGuard::Traverse(visitproc visit, void* arg) const {
  Py_VISIT(reinterpret_cast<PyObject*>(type_.get()));
  return 0;
}

}  // namespace frametap
