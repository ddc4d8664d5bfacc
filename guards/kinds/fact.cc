#include "guards/kinds/fact.h"

#include <bit>

#include "guards/kinds/length.h"
#include "guards/kinds/tensor.h"
#include "guards/objects/torch_tensor.h"

namespace frametap {
namespace {

uint64_t KeyOfValue(const Reached& at) {
  PyObject* o = at.object;
  if (o == nullptr) return absl::HashOf(at.number);
  uint64_t value = 0;
  if (PyUnicode_CheckExact(o)) {
    value = static_cast<uint64_t>(PyObject_Hash(o));
  } else if (PyLong_CheckExact(o)) {
    int overflow = 0;
    value = static_cast<uint64_t>(PyLong_AsLongLongAndOverflow(o, &overflow));
  } else if (PyFloat_CheckExact(o)) {
    value = std::bit_cast<uint64_t>(PyFloat_AS_DOUBLE(o));
  } else if (PyBool_Check(o)) {
    value = o == Py_True;
  }
  return absl::HashOf(Py_TYPE(o), value);
}

}  // namespace

uint64_t Fact::KeyAt(Kind kind, const Reached& at) {
  PyObject* o = at.object;
  if (kind == Kind::kValue) return KeyOfValue(at);
  if (o == nullptr) return 0;
  switch (kind) {
    case Kind::kLength: {
      Py_ssize_t count;
      return LengthGuard::CountOf(o, &count) ? absl::HashOf(count) : 0;
    }
    case Kind::kType:
      return KeyOf(Py_TYPE(o));
    case Kind::kObject:
      return KeyOf(o);
    case Kind::kCode:
      return PyFunction_Check(o) ? KeyOf(PyFunction_GET_CODE(o)) : 0;
    case Kind::kTensor:
      return IsTensor(o) ? TensorGuard::BasicsOf(o).Key() : 0;
    case Kind::kSizes:
      return IsTensor(o) ? TensorGuard::SizesKey(o) : 0;
    case Kind::kValue:
      break;
  }
  return 0;
}

}  // namespace frametap
