// The door's other side: THPVariable and its neighbours.
#include "guards/objects/torch_tensor.h"

#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>
#include <torch/csrc/Size.h>
#include <torch/csrc/autograd/python_variable.h>

#include <exception>

namespace frametap {

// THPVariable_Check would call PyObject_IsInstance and so a metaclass's __instancecheck__; TensorOf relies on the
// layout of real subtypes.
bool IsTensor(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  // torch.Tensor is a class made by Python code, and so are its subclasses: this test decides most objects.
  if ((type->tp_flags & Py_TPFLAGS_HEAPTYPE) == 0 || type->tp_basicsize < static_cast<Py_ssize_t>(sizeof(THPVariable)))
    return false;
  if (THPVariableClass == nullptr) return false;
  return IsExactTensor(object) || PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(THPVariableClass));
}

bool IsExactTensor(PyObject* object) { return THPVariableClass != nullptr && THPVariable_CheckExact(object); }

bool IsTorchSize(PyObject* object) { return THPSize_Check(object); }

PyTypeObject* ParameterClassOfTorch() { return reinterpret_cast<PyTypeObject*>(ParameterClass); }

const at::Tensor& TensorOf(PyObject* tensor) { return THPVariable_Unpack(tensor); }

PyObject* WrapTensor(at::Tensor tensor) {
  try {
    return THPVariable_Wrap(std::move(tensor));
  } catch (...) {
    SetPythonErrorFromException();
    return nullptr;
  }
}

void SetPythonErrorFromException() noexcept {
  try {
    torch::translate_exception_to_python(std::current_exception());
  } catch (...) {
    // Not a std::exception: the translation lets it through.
    PyErr_SetString(PyExc_RuntimeError, "unknown C++ exception");
  }
}

bool TorchConstantOf(PyObject* object, c10::IValue* out) {
  if (THPDtype_Check(object)) {
    *out = static_cast<int64_t>(reinterpret_cast<THPDtype*>(object)->scalar_type);
  } else if (THPDevice_Check(object)) {
    *out = reinterpret_cast<THPDevice*>(object)->device;
  } else if (THPLayout_Check(object)) {
    *out = static_cast<int64_t>(reinterpret_cast<THPLayout*>(object)->layout);
  } else if (THPMemoryFormat_Check(object)) {
    *out = static_cast<int64_t>(reinterpret_cast<THPMemoryFormat*>(object)->memory_format);
  } else {
    return false;
  }
  return true;
}

PyObject* DtypeObject(c10::ScalarType dtype) { return reinterpret_cast<PyObject*>(torch::getTHPDtype(dtype)); }

}  // namespace frametap
