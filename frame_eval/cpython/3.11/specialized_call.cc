// Calls as the evaluation loop of 3.11 makes them once it has specialised them: some C functions are then called
// straight away and are not counted against the recursion limit. A recursion through next(), sum() or getattr() goes
// twice as deep as with PyObject_Vectorcall, and programs rely on it.
#include "frame_eval/cpython/3.11/raw_frame.h"
#include "frame_eval/cpython/private_api.h"

namespace frametap {
namespace {

template <class F>
F As(PyCFunction function) {
  return reinterpret_cast<F>(reinterpret_cast<void (*)()>(function));
}

// Returns false if the loop does not call such a function directly.
bool CallFast(PyMethodDef* method, PyObject* self, PyObject* const* args, Py_ssize_t n, PyObject* kwnames,
              PyObject** result) {
  // Any other flag beside these (METH_METHOD: another signature) keeps the loop from it.
  if (method->ml_flags == METH_FASTCALL && kwnames == nullptr) {
    *result = As<_PyCFunctionFast>(method->ml_meth)(self, args, n);
  } else if (method->ml_flags == (METH_FASTCALL | METH_KEYWORDS)) {
    *result = As<_PyCFunctionFastWithKeywords>(method->ml_meth)(self, args, n, kwnames);
  } else {
    return false;
  }
  return true;
}

}  // namespace

PyObject* SpecializedCall(PyThreadState* ts, PyObject* callable, PyObject* const* args, Py_ssize_t n,
                          PyObject* kwnames) {
  bool single = n == 1 && kwnames == nullptr;
  bool called = false;
  PyObject* result = nullptr;
  if (PyCFunction_CheckExact(callable)) {
    if (single && callable == ts->interp->callable_cache.len) {
      called = true;
      result = PyCFunction_GET_FUNCTION(callable)(PyCFunction_GET_SELF(callable), args[0]);
    } else {
      auto* function = reinterpret_cast<PyCFunctionObject*>(callable);
      called = CallFast(function->m_ml, PyCFunction_GET_SELF(callable), args, n, kwnames, &result);
    }
  } else if (Py_IS_TYPE(callable, &PyMethodDescr_Type)) {
    auto* method = reinterpret_cast<PyMethodDescrObject*>(callable);
    if (n > 0 && kwnames == nullptr && Py_IS_TYPE(args[0], PyDescr_TYPE(method))) {
      called = CallFast(method->d_method, args[0], args + 1, n - 1, nullptr, &result);
    }
  } else if (single && callable == reinterpret_cast<PyObject*>(&PyUnicode_Type)) {
    called = true;
    result = PyObject_Str(args[0]);
  }
  return called ? _Py_CheckFunctionResult(ts, callable, result, nullptr)
                : PyObject_Vectorcall(callable, args, n, kwnames);
}

}  // namespace frametap
