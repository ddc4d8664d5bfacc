#include "frame_eval/cpython/contextvars.h"

#ifndef Py_BUILD_CORE
#define Py_BUILD_CORE 1
#define FRAMETAP_UNDEF_BUILD_CORE
#endif
#undef HAVE_STD_ATOMIC
#include <internal/pycore_context.h>
#include <internal/pycore_hamt.h>
#ifdef FRAMETAP_UNDEF_BUILD_CORE
#undef Py_BUILD_CORE
#undef FRAMETAP_UNDEF_BUILD_CORE
#endif

namespace frametap {

ContextVariables::ContextVariables() : copy_(Ref<>::Steal(PyContext_CopyCurrent())) {  // makes one if there is none
  if (!copy_) PyErr_Clear();
  context_ = Ref<>::New(PyThreadState_Get()->context);
}

void ContextVariables::PutBack() const {
  PyThreadState* ts = PyThreadState_Get();
  if (!copy_ || !context_ || ts->context != context_.get()) return;
  auto* context = reinterpret_cast<PyContext*>(context_.get());
  PyHamtObject* saved = reinterpret_cast<PyContext*>(copy_.get())->ctx_vars;
  if (context->ctx_vars == saved) return;
  PyHamtObject* old = context->ctx_vars;
  Py_INCREF(saved);
  context->ctx_vars = saved;
  ++ts->context_ver;  // each variable keeps its last value for a version of the context
  Py_XDECREF(old);
}

}  // namespace frametap
