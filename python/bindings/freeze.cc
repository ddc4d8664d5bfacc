// FreezeBackend, freeze_of: the backend of frozen models as Python sees it.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "backends/freeze/freeze_backend.h"
#include "guards/tensor_door.h"
#include "python/bindings/bindings.h"
#include "python/bindings/op_rows.h"

namespace frametap {
namespace {

namespace py = pybind11;

py::list Rows(const std::vector<freeze::OpReport>& report) {
  return OpRows(report, [](const freeze::OpReport& r, py::dict& row) {
    row["form"] = freeze::ToString(r.form);
    row["reason"] = r.reason;
  });
}

}  // namespace

void BindFreeze(py::module_& m) {
  py::class_<freeze::FreezeBackend, Backend, std::shared_ptr<freeze::FreezeBackend>>(
      m, "FreezeBackend", "Packs the weights of each graph that is recorded, and fuses its ops.")
      .def(py::init([](const py::sequence& weights, bool multiplies_bfloat16) {
             std::vector<at::Tensor> tensors;
             for (const py::handle weight : weights) tensors.push_back(TensorOf(weight.ptr()));
             return std::make_shared<freeze::FreezeBackend>(tensors, freeze::Config{multiplies_bfloat16});
           }),
           py::arg("weights"), py::kw_only(), py::arg("multiplies_bfloat16"))
      .def_property_readonly("problems", &freeze::FreezeBackend::problems);
  m.def(
      "freeze_of",
      [](const ExecutableHandle& handle) -> py::object {
        const auto* executable = dynamic_cast<const freeze::FreezeExecutable*>(handle.executable.get());
        if (executable == nullptr) return py::none();
        GraphHandle graph;
        graph.graph = std::make_shared<const Graph>(executable->frozen().graph);
        py::dict d;
        d["runs"] = executable->runs();
        d["report"] = Rows(executable->frozen().report);
        d["graph"] = std::move(graph);
        return d;
      },
      py::arg("executable"), "The frozen form of a graph; None for others.");
}

}  // namespace frametap
