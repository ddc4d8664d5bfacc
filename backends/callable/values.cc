#include "backends/callable/values.h"

#include <torch/csrc/utils/pybind.h>

#include "absl/strings/str_cat.h"
#include "guards/objects/import.h"
#include "guards/objects/torch_tensor.h"

namespace frametap {

namespace py = pybind11;

namespace {

py::object Own(PyObject* object) {
  if (object == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(object);
}

// The type of the elements, or of the content of an Optional.
const c10::Type* Contained(const c10::Type* type) {
  if (type == nullptr || type->containedTypeSize() == 0) return nullptr;
  return type->containedType(0).get();
}

py::object IntToPython(int64_t value, const c10::Type* type) {
  if (type != nullptr) {
    switch (type->kind()) {
      case c10::TypeKind::ScalarTypeType:
        return py::reinterpret_borrow<py::object>(DtypeObject(static_cast<c10::ScalarType>(value)));
      case c10::TypeKind::LayoutType:
        return py::cast(static_cast<c10::Layout>(value));
      case c10::TypeKind::MemoryFormatType:
        return py::cast(static_cast<c10::MemoryFormat>(value));
      default:
        break;
    }
  }
  return py::int_(value);
}

absl::Status Unexpected(py::handle object, Type::Kind kind) {
  return absl::InvalidArgumentError(
      absl::StrCat("a value of kind '", KindName(kind), "' expected, got ", Py_TYPE(object.ptr())->tp_name));
}

bool IsSequence(py::handle object) { return PyList_CheckExact(object.ptr()) || PyTuple_CheckExact(object.ptr()); }

absl::StatusOr<c10::IValue> TensorList(py::handle object) {
  c10::List<at::Tensor> list;
  for (py::handle item : py::reinterpret_borrow<py::sequence>(object)) {
    if (!IsTensor(item.ptr())) return Unexpected(item, Type::Kind::kTensor);
    list.push_back(TensorOf(item.ptr()));
  }
  return c10::IValue(std::move(list));
}

absl::StatusOr<c10::IValue> Int(py::handle object) {
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
  if (overflow != 0) return absl::OutOfRangeError("an int of more than 64 bits cannot be a graph value");
  return c10::IValue(static_cast<int64_t>(value));
}

absl::StatusOr<c10::IValue> Any(py::handle object) {
  PyObject* p = object.ptr();
  if (p == Py_None) return c10::IValue();
  if (IsTensor(p)) return c10::IValue(TensorOf(p));
  if (PyBool_Check(p)) return c10::IValue(p == Py_True);
  if (PyLong_Check(p)) return Int(object);
  if (PyFloat_Check(p)) return c10::IValue(PyFloat_AS_DOUBLE(p));
  if (PyUnicode_Check(p)) return c10::IValue(py::cast<std::string>(object));
  if (IsSequence(object)) return TensorList(object);
  c10::IValue constant;
  if (TorchConstantOf(p, &constant)) return constant;
  return Unexpected(object, Type::Kind::kOpaque);
}

}  // namespace

py::object Imported(const char* module) { return Own(ImportModule(module).Release()); }

const char* KindName(Type::Kind kind) {
  switch (kind) {
    case Type::Kind::kNone:
      return "none";
    case Type::Kind::kTensor:
      return "tensor";
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
  }
  return "opaque";
}

py::object ToPython(const c10::IValue& value, const c10::Type* type) {
  while (type != nullptr && type->kind() == c10::TypeKind::OptionalType) type = Contained(type);
  if (value.isNone()) return py::none();
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    return tensor.defined() ? Own(WrapTensor(tensor)) : py::none();
  }
  if (value.isBool()) return py::bool_(value.toBool());
  if (value.isInt()) return IntToPython(value.toInt(), type);
  if (value.isDouble()) return py::float_(value.toDouble());
  if (value.isComplexDouble()) {
    const c10::complex<double> c = value.toComplexDouble();
    return Own(PyComplex_FromDoubles(c.real(), c.imag()));
  }
  if (value.isString()) return py::str(value.toStringRef());
  if (value.isDevice()) return py::cast(value.toDevice());
  if (value.isGenerator()) return py::cast(value.toGenerator());
  if (value.isSymInt()) return py::cast(value.toSymInt());
  if (value.isSymFloat()) return py::cast(value.toSymFloat());
  if (value.isSymBool()) return py::cast(value.toSymBool());
  if (value.isList()) {
    const c10::Type* element = Contained(type);
    py::list out;
    for (const c10::IValue& item : value.toListRef()) out.append(ToPython(item, element));
    return out;
  }
  if (value.isTuple()) {
    const auto& items = value.toTupleRef().elements();
    py::tuple out(items.size());
    for (size_t i = 0; i < items.size(); ++i) out[i] = ToPython(items[i]);
    return out;
  }
  throw py::type_error(absl::StrCat("a value of type ", value.tagKind(), " has no Python form in a graph"));
}

absl::StatusOr<c10::IValue> FromPython(py::handle object, Type::Kind kind) {
  PyObject* p = object.ptr();
  switch (kind) {
    case Type::Kind::kNone:
      if (p == Py_None) return c10::IValue();
      break;
    case Type::Kind::kTensor:
      if (IsTensor(p)) return c10::IValue(TensorOf(p));
      break;
    case Type::Kind::kTensorList:
      if (IsSequence(object)) return TensorList(object);
      break;
    case Type::Kind::kInt:
      if (PyLong_Check(p) && !PyBool_Check(p)) return Int(object);
      break;
    case Type::Kind::kFloat:
      if (PyFloat_Check(p)) return c10::IValue(PyFloat_AS_DOUBLE(p));
      break;
    case Type::Kind::kBool:
      if (PyBool_Check(p)) return c10::IValue(p == Py_True);
      break;
    case Type::Kind::kOpaque:
      return Any(object);
  }
  return Unexpected(object, kind);
}

}  // namespace frametap
