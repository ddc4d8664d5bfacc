#include "guards/kinds/tensor.h"

#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/value.h"

namespace frametap {

namespace {

bool HasStrides(const c10::TensorImpl& impl) { return impl.layout() == c10::Layout::Strided; }

c10::Device DeviceOf(int8_t type, int8_t index) { return {static_cast<c10::DeviceType>(type), index}; }

const char* WithGrad(bool requires_grad) { return requires_grad ? "requires grad" : "no grad"; }

}  // namespace

TensorGuard::TensorGuard(PyObject* tensor)
    : Guard(Kind::kTensor), type_(Ref<PyTypeObject>::New(Py_TYPE(tensor))), facts_(FactsOf(tensor)) {}

TensorGuard::Facts TensorGuard::FactsOf(PyObject* tensor) {
  const c10::TensorImpl& impl = *TensorOf(tensor).unsafeGetTensorImpl();
  Facts f;
  f.basics = BasicsOf(tensor);
  f.offset = false;
  if (impl.has_symbolic_sizes_strides() || impl.is_nested()) return f;
  f.sizes.assign(impl.sizes().begin(), impl.sizes().end());
  if (HasStrides(impl)) {
    f.strides.assign(impl.strides().begin(), impl.strides().end());
    f.offset = impl.storage_offset() != 0;
  }
  return f;
}

TensorGuard::Basics TensorGuard::BasicsOf(PyObject* tensor) {
  const c10::TensorImpl& impl = *TensorOf(tensor).unsafeGetTensorImpl();
  const c10::Device device = impl.device();
  Basics basics;
  basics.type = Py_TYPE(tensor);
  basics.keys = impl.key_set().raw_repr();
  basics.dtype = static_cast<int8_t>(c10::typeMetaToScalarType(impl.dtype()));
  basics.device_type = static_cast<int8_t>(device.type());
  basics.device_index = device.index();
  basics.requires_grad = impl.requires_grad();
  basics.rank = static_cast<int32_t>(impl.dim());
  return basics;
}

uint64_t TensorGuard::Basics::Key() const {
  return absl::HashOf(type, keys, rank, dtype, device_type, device_index, requires_grad);
}

uint64_t TensorGuard::SizesKey(PyObject* tensor) {
  const c10::TensorImpl& impl = *TensorOf(tensor).unsafeGetTensorImpl();
  if (impl.has_symbolic_sizes_strides() || impl.is_nested()) return 0;
  return absl::HashOf(absl::MakeConstSpan(impl.sizes().data(), impl.sizes().size()));
}

std::optional<Fact> TensorGuard::fact() const {
  if (!read_.sizes) return Fact{Fact::Kind::kTensor, facts_.basics.Key()};
  return Fact{Fact::Kind::kSizes, absl::HashOf(absl::MakeConstSpan(facts_.sizes))};
}

void TensorGuard::Read(const TensorRead& read) {
  read_.sizes |= read.sizes | read.strides;
  read_.strides |= read.strides;
  read_.dims |= read.dims;
}

bool TensorGuard::Basics::Hold(PyObject* object) const {
  if (Py_TYPE(object) != type) return false;
  const c10::TensorImpl& impl = *TensorOf(object).unsafeGetTensorImpl();
  return HoldOf(impl) && impl.requires_grad() == requires_grad;
}

bool TensorGuard::ShapeHolds(PyObject* tensor) const {
  const c10::TensorImpl& impl = *TensorOf(tensor).unsafeGetTensorImpl();
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

Predicate TensorGuard::Says(const Facts& facts, const TensorRead& shown) {
  const Basics& basics = facts.basics;
  Predicate::Tensor tensor;
  tensor.dtype = static_cast<c10::ScalarType>(basics.dtype);
  tensor.sizes = facts.sizes;
  for (size_t i = 0; i < facts.sizes.size(); ++i) {
    if (!shown.sizes && (i >= 64 || (shown.dims >> i & 1) == 0)) tensor.sizes[i] = -1;
  }
  if (shown.strides) {
    tensor.strides = facts.strides;
    tensor.has_offset = facts.offset;
  }
  tensor.device = DeviceOf(basics.device_type, basics.device_index);
  tensor.requires_grad = basics.requires_grad;
  return {Predicate::Form::kTensor, std::move(tensor)};
}

Predicate TensorGuard::Want() const { return Says(facts_, read_); }

std::string TensorGuard::Got(const Reached& at) const {
  if (at.object == nullptr || !IsTensor(at.object)) return Guard::Got(at);
  TensorRead shown;
  shown.sizes = true;
  shown.strides = read_.strides;
  return ToString(Says(FactsOf(at.object), shown));
}

std::string TensorGuard::Why(const Reached& at) const {
  PyObject* object = at.object;
  if (object == nullptr) return "a number";
  if (Py_TYPE(object) != type_.get()) {
    return absl::StrCat("type: ", TypeName(Py_TYPE(object)), " != ", TypeName(type_.get()));
  }
  const Facts all = FactsOf(object);
  const Basics &got = all.basics, &want = facts_.basics;
  const auto differ = [](const std::string& what, const std::string& a, const std::string& b) {
    return absl::StrCat(what, ": ", a, " != ", b);
  };
  if (got.dtype != want.dtype) {
    return differ("dtype", DtypeName(static_cast<c10::ScalarType>(got.dtype)),
                  DtypeName(static_cast<c10::ScalarType>(want.dtype)));
  }
  if (got.device_type != want.device_type || got.device_index != want.device_index) {
    return differ("device", DeviceOf(got.device_type, got.device_index).str(),
                  DeviceOf(want.device_type, want.device_index).str());
  }
  if (got.rank != want.rank) return differ("rank", std::to_string(got.rank), std::to_string(want.rank));
  if (got.requires_grad != want.requires_grad) {
    return differ("requires_grad", WithGrad(got.requires_grad), WithGrad(want.requires_grad));
  }
  if (TensorOf(object).unsafeGetTensorImpl()->has_symbolic_sizes_strides()) return "sizes are symbolic";
  if (got.keys != want.keys) {
    return differ("dispatch keys", c10::toString(c10::DispatchKeySet(c10::DispatchKeySet::RAW, got.keys)),
                  c10::toString(c10::DispatchKeySet(c10::DispatchKeySet::RAW, want.keys)));
  }
  for (size_t i = 0; i < facts_.sizes.size(); ++i) {
    if (!(read_.sizes || (i < 64 && (read_.dims >> i & 1) != 0)) || all.sizes[i] == facts_.sizes[i]) continue;
    return differ(absl::StrCat("dim ", i), std::to_string(all.sizes[i]), std::to_string(facts_.sizes[i]));
  }
  if (!read_.strides) return "";
  for (size_t i = 0; i < facts_.strides.size(); ++i) {
    if (all.strides[i] == facts_.strides[i]) continue;
    return differ(absl::StrCat("stride ", i), std::to_string(all.strides[i]), std::to_string(facts_.strides[i]));
  }
  if (all.offset != facts_.offset) return all.offset ? "storage offset is not 0" : "storage offset is 0";
  return "";
}

int TensorGuard::Traverse(visitproc visit, void* arg) const {
  Py_VISIT(reinterpret_cast<PyObject*>(type_.get()));
  return 0;
}

}  // namespace frametap
