#include "frame_eval/opcodes/names.h"
#include "python/bindings/bindings.h"

PYBIND11_MODULE(_C, m) {
  m.doc() = "The C++ part of frametap.";
  if (!frametap::InternNames()) throw pybind11::error_already_set();
  frametap::BindErrors(m);
  frametap::BindGraph(m);
  frametap::BindBackends(m);
  frametap::BindQuant(m);
  frametap::BindCompiled(m);
  frametap::BindCallables(m);
}
