// FreezeBackend, FollowingBackend, freeze_of: the backends of frozen models as Python sees them.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "backends/freeze/following.h"
#include "backends/freeze/freeze_backend.h"
#include "guards/objects/torch_tensor.h"
#include "python/bindings/bindings.h"
#include "python/bindings/errors.h"
#include "python/bindings/op_rows.h"

namespace frametap {
namespace {

namespace py = pybind11;

py::list Rows(const std::vector<freeze::OpReport>& report) {
  return OpRows(report, [](const freeze::OpReport& r, py::dict& row) {
    row["form"] = freeze::ToString(r.form);
    row["reason"] = r.reason;
    row["is_int8"] = r.is_int8;
  });
}

// Whether a tensor is a parameter, or a buffer that TorchDynamo has marked as one that stays in its place.
bool StaysInItsPlace(const at::Tensor& tensor) {
  const py::gil_scoped_acquire locked;
  const py::object parameter = py::module_::import("torch.nn").attr("Parameter");
  const py::object object = py::reinterpret_steal<py::object>(WrapTensor(tensor));
  return py::isinstance(object, parameter) || py::hasattr(object, "_dynamo_static_input_type");
}

freeze::Products ProductsOf(const std::string& name) {
  if (name == "float32") return freeze::Products::kFloat32;
  if (name == "bfloat16") return freeze::Products::kBfloat16;
  if (name == "dynamic int8") return freeze::Products::kDynamicInt8;
  throw py::value_error("products: " + name);
}

py::dict Made(const freeze::FrozenGraph& frozen, uint64_t runs) {
  GraphHandle graph;
  graph.graph = std::make_shared<const Graph>(frozen.graph);
  py::dict d;
  d["runs"] = runs;
  d["report"] = Rows(frozen.report);
  d["graph"] = std::move(graph);
  return d;
}

}  // namespace

void BindFreeze(py::module_& m) {
  py::class_<freeze::FreezeBackend, Backend, std::shared_ptr<freeze::FreezeBackend>>(
      m, "FreezeBackend", "Packs the weights of each graph that is recorded, and fuses its ops.")
      .def(py::init([](const py::sequence& weights, const std::string& products, const py::dict& options) {
             std::vector<at::Tensor> tensors;
             for (const py::handle weight : weights) tensors.push_back(TensorOf(weight.ptr()));
             return std::make_shared<freeze::FreezeBackend>(
                 tensors, freeze::Config{ProductsOf(products), QuantConfigOf(options)});
           }),
           py::arg("weights"), py::kw_only(), py::arg("products"), py::arg("options") = py::dict())
      .def(
          "freeze",
          [](freeze::FreezeBackend& self, const GraphHandle& graph, const std::vector<py::object>& weights) {
            std::vector<at::Tensor> tensors;
            for (const py::object& weight : weights) {
              tensors.push_back(weight.is_none() ? at::Tensor() : TensorOf(weight.ptr()));
            }
            auto frozen = [&] {
              const py::gil_scoped_release unlocked;
              return self.Freeze(*graph.graph, tensors);
            }();
            GraphHandle made;
            made.graph = std::make_shared<const Graph>(ValueOrThrow(std::move(frozen), "FreezeError").graph);
            return made;
          },
          py::arg("graph"), py::arg("weights"),
          "The frozen form of a graph. Weights by input; None for an input that is not one.")
      .def_property_readonly("problems", &freeze::FreezeBackend::problems);
  py::class_<freeze::FollowingBackend, Backend, std::shared_ptr<freeze::FollowingBackend>>(
      m, "FollowingBackend", "Freezes graphs whose weights are inputs, and freezes again where a weight has changed.")
      .def(py::init([](const py::sequence& weights, const std::string& products) {
             quant::WeightSet known;
             for (const py::handle weight : weights) known.Add(TensorOf(weight.ptr()));
             return std::make_shared<freeze::FollowingBackend>(
                 [known](const at::Tensor& tensor) { return known.contains(tensor) || StaysInItsPlace(tensor); },
                 freeze::Config{ProductsOf(products)});
           }),
           py::arg("weights"), py::kw_only(), py::arg("products"))
      .def_property_readonly("problem_count", &freeze::FollowingBackend::problem_count)
      .def_property_readonly("problems", &freeze::FollowingBackend::problems);
  m.def(
      "freeze_of",
      [](const ExecutableHandle& handle) -> py::object {
        if (const auto* executable = dynamic_cast<const freeze::FreezeExecutable*>(handle.executable.get())) {
          return Made(executable->frozen(), executable->runs());
        }
        const auto* following = dynamic_cast<const freeze::FollowingExecutable*>(handle.executable.get());
        const auto frozen = following == nullptr ? nullptr : following->frozen();
        if (frozen == nullptr) return py::none();
        py::dict d = Made(*frozen, following->runs());
        d["forms"] = following->forms();
        d["freezes"] = following->freezes();
        return d;
      },
      py::arg("executable"), "The frozen form of a graph that ran last; None for others.");
}

}  // namespace frametap
