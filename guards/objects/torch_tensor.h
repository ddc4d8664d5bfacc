// The one door to torch's Python tensors: from a PyObject to its TensorImpl and back.
// Its implementation is the only place in guards/ and frame_eval/ that includes the headers of torch's Python classes.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <Python.h>

namespace frametap {

bool IsTensor(PyObject* object);               // a torch.Tensor or an instance of a subclass
bool IsExactTensor(PyObject* object);          // torch.Tensor or torch.nn.Parameter, nothing else
bool IsTorchSize(PyObject* object);            // torch.Size
PyTypeObject* ParameterClassOfTorch();         // torch.nn.Parameter; null before torch is imported
const at::Tensor& TensorOf(PyObject* tensor);  // requires IsTensor; lives as long as `tensor`
PyObject* WrapTensor(at::Tensor tensor);       // new reference; the same object for the same TensorImpl

// Sets the Python exception that torch's own bindings would raise for the C++ exception in flight.
// Call inside a catch (...) block only.
void SetPythonErrorFromException() noexcept;

// Gives the C++ value of a dtype, device, layout or memory format, as ATen schemas want it. Returns false for any other
// object.
bool TorchConstantOf(PyObject* object, c10::IValue* out);
PyObject* DtypeObject(c10::ScalarType dtype);  // borrowed

}  // namespace frametap
