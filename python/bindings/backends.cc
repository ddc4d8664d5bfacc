// Backends and executables as Python sees them.
#include "backends/backend.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "backends/callable/callable_backend.h"
#include "backends/callable/values.h"
#include "guards/kinds/anomaly_mode.h"
#include "guards/objects/torch_tensor.h"
#include "ir/ops/memory_overlap.h"
#include "ir/text/text.h"
#include "python/bindings/bindings.h"
#include "python/bindings/errors.h"

namespace frametap {

namespace py = pybind11;

namespace {

py::object ViewOf(const Graph& graph) {
  GraphHandle handle;
  handle.graph = std::make_shared<const Graph>(graph);
  return py::cast(std::move(handle));
}

bool InputsMayOverlap(const py::sequence& inputs) {
  std::vector<at::Tensor> tensors;
  for (const py::handle input : inputs) {
    if (IsTensor(input.ptr())) tensors.push_back(TensorOf(input.ptr()));
  }
  return MayOverlap(tensors);
}

std::vector<c10::IValue> GraphInputs(const Graph& graph, const py::sequence& values) {
  if (py::len(values) != graph.inputs.size()) {
    Throw(absl::InvalidArgumentError(
              absl::StrCat("the graph takes ", graph.inputs.size(), " inputs, ", py::len(values), " were given")),
          "BackendError");
  }
  std::vector<c10::IValue> inputs;
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const Value& input = graph.value(graph.inputs[i]);
    const Type::Kind kind = input.type.kind == Type::Kind::kNone ? Type::Kind::kOpaque : input.type.kind;
    absl::StatusOr<c10::IValue> value = FromPython(py::object(values[i]), kind);
    if (!value.ok()) {
      Throw(absl::InvalidArgumentError(absl::StrCat("input %", input.name, ": ", value.status().message())),
            "BackendError");
    }
    inputs.push_back(*std::move(value));
  }
  return inputs;
}

py::list Run(const ExecutableHandle& self, const py::sequence& values) {
  std::vector<c10::IValue> inputs = GraphInputs(*self.graph, values);
  std::vector<c10::IValue> results;
  if (self.executable->releases_gil()) {
    py::gil_scoped_release unlock;
    results = self.executable->Run(inputs);
  } else {
    results = self.executable->Run(inputs);
  }
  py::list out;
  for (const c10::IValue& result : results) out.append(ToPython(result));
  return out;
}

ExecutableHandle Compile(const BackendHandle& backend, const GraphHandle& graph, const py::object& examples) {
  ExecutableHandle out;
  out.graph = graph.graph;
  struct Kept {
    std::shared_ptr<const Graph> graph;  // outlives the executable (backend/B4)
    std::unique_ptr<Executable> executable;
  };
  if (!examples.is_none()) ThrowIfError(VerifyRunnable(*graph.graph), "GraphError");  // backend/B4
  absl::StatusOr<std::unique_ptr<Executable>> executable =
      examples.is_none() ? backend->Compile(*graph.graph)
                         : backend->CompileFor(*graph.graph, {GraphInputs(*graph.graph, examples), {}, {}});
  const std::shared_ptr<Kept> kept(new Kept{graph.graph, ValueOrThrow(std::move(executable), "BackendError")});
  out.executable = std::shared_ptr<Executable>(kept, kept->executable.get());
  return out;
}

}  // namespace

void BindBackends(py::module_& m) {
  py::class_<Backend, BackendHandle>(m, "Backend", "Compiles graphs.")
      .def_property_readonly("name", &Backend::name)
      .def_property_readonly("static_sizes", [](const Backend& self) { return self.assumptions().static_sizes; })
      .def_property_readonly("static_strides", [](const Backend& self) { return self.assumptions().static_strides; })
      .def("__repr__", [](const Backend& self) { return absl::StrCat("<frametap.Backend '", self.name(), "'>"); });
  py::class_<ExecutableHandle>(m, "Executable", "A compiled graph.")
      .def("run", Run, py::arg("inputs"), "The graph's outputs for these inputs, in order.");
  m.def(
      "reference_backend", []() -> BackendHandle { return MakeReferenceBackend(); }, "Op by op: the oracle.");
  m.def(
      "native_backend", []() -> BackendHandle { return MakeNativeBackend(); }, "The planned executor in C++.");
  m.def("begin_compilation", &BeginCompilation);
  m.def("end_compilation", &EndCompilation);
  m.def("may_overlap", &InputsMayOverlap, py::arg("inputs"),
        "Whether two of the tensors among these objects may share elements.");
  m.def(
      "callable_backend",
      [](py::object function, std::string name, bool static_shapes) -> BackendHandle {
        return MakeCallableBackend(std::move(function), std::move(name), static_shapes, ViewOf);
      },
      py::arg("function"), py::arg("name"), py::kw_only(), py::arg("static") = true,
      "A function (GraphModule, example_inputs) -> callable. `static`: what it returns relies on sizes and strides.");
  m.def("compile", Compile, py::arg("backend"), py::arg("graph"), py::arg("examples") = py::none());
}

}  // namespace frametap
