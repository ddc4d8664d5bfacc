#include "python/bindings/bindings.h"

PYBIND11_MODULE(_C, m) {
  m.doc() = "The C++ part of frametap.";
  frametap::BindErrors(m);
  frametap::BindGraph(m);
  frametap::BindBackends(m);
  frametap::BindQuant(m);
  frametap::BindCompiled(m);
}
