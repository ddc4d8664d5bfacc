#include "frame_eval/checks/self_checking.h"
#include "frame_eval/interpreter/opcodes/names.h"
#include "ir/leaks.h"
#include "python/bindings/bindings.h"

PYBIND11_MODULE(_C, m) {
  m.doc() = "The C++ part of frametap.";
  if (!frametap::InternNames()) throw pybind11::error_already_set();
  frametap::BindErrors(m);
  frametap::BindGraph(m);
  frametap::BindBackends(m);
  frametap::BindQuant(m);
  frametap::BindOffload(m);
  frametap::BindFreeze(m);
  frametap::BindInferenceCalls(m);
  frametap::BindCompiled(m);
  frametap::BindCallables(m);
  frametap::BindProfilerMarks(m);
  if (frametap::SelfChecking()) Py_AtExit(frametap::ReportLeaks);  // runs when the interpreter is gone
}
