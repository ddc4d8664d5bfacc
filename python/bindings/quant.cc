// quant_observe, quant_convert, quant_lower: the quantization backend as Python sees it. Every decision is in C++; here
// only names and types change.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "absl/strings/str_cat.h"
#include "backends/quant/onednn_adapter.h"
#include "backends/quant/operators.h"
#include "backends/quant/quantize.h"
#include "python/bindings/bindings.h"
#include "python/bindings/errors.h"

namespace frametap {
namespace {

namespace py = pybind11;

constexpr char kError[] = "QuantizationError";

[[noreturn]] void Refuse(const std::string& text) { Throw(absl::InvalidArgumentError(text), kError); }

absl::flat_hash_set<std::string> Names(const py::handle& names) {
  absl::flat_hash_set<std::string> out;
  for (const py::handle name : names) out.insert(py::cast<std::string>(name));
  return out;
}

quant::QuantConfig ConfigOf(const py::dict& options) {
  quant::QuantConfig config;
  for (const auto& [key, value] : options) {
    const std::string name = py::cast<std::string>(key);
    if (name == "observer") {
      const std::string observer = py::cast<std::string>(value);
      if (observer != "minmax" && observer != "histogram") {
        Refuse(absl::StrCat("observer must be 'minmax' or 'histogram', not '", observer, "'"));
      }
      config.observer = observer == "minmax" ? quant::Observer::kMinMax : quant::Observer::kHistogram;
    } else if (name == "activation_bits") {
      config.activation_bits = py::cast<int>(value);
    } else if (name == "float_ops") {
      config.float_ops = Names(value);
    } else if (name == "float_scopes") {
      config.float_scopes = Names(value);
    } else if (name == "measure") {
      config.measure = py::cast<bool>(value);
    } else {
      Refuse(absl::StrCat("unknown option '", name,
                          "'; known are observer, activation_bits, float_ops, float_scopes, measure"));
    }
  }
  return config;
}

py::object Number(const std::optional<double>& number) { return number ? py::object(py::float_(*number)) : py::none(); }

py::list Rows(const std::vector<quant::OpReport>& report) {
  py::list rows;
  for (const quant::OpReport& r : report) {
    py::dict row;
    row["op"] = r.op;
    row["function"] = r.position.function.str();
    row["file"] = r.position.file.str();
    row["line"] = r.position.line;
    row["column"] = r.position.col;
    row["scope"] = r.scope;
    row["decision"] = quant::ToString(r.decision);
    row["reason"] = r.reason;
    row["sqnr"] = Number(r.sqnr);
    row["cumulative_sqnr"] = Number(r.cumulative_sqnr);
    rows.append(std::move(row));
  }
  return rows;
}

struct QuantizedHandle {
  GraphHandle reference;
  GraphHandle lowered;
  std::string lowering_note;
  std::vector<quant::OpReport> report;
};

GraphHandle Handle(Graph graph, const std::vector<at::Tensor>& weights) {
  GraphHandle handle;
  handle.graph = std::make_shared<const Graph>(std::move(graph));
  handle.weights = weights;
  return handle;
}

}  // namespace

void BindQuant(py::module_& m) {
  quant::RegisterOperators();

  py::class_<quant::Observation, std::shared_ptr<quant::Observation>>(m, "Observation",
                                                                      "What calibration saw of one graph.")
      .def_property_readonly("runs", &quant::Observation::runs);

  py::class_<QuantizedHandle>(m, "QuantizedGraph", "A graph in 8 bits: the reference, its lowered form, a report.")
      .def_readonly("reference", &QuantizedHandle::reference)
      .def_readonly("lowered", &QuantizedHandle::lowered)
      .def_readonly("lowering_note", &QuantizedHandle::lowering_note)
      .def_property_readonly("report", [](const QuantizedHandle& q) { return Rows(q.report); });

  m.def(
      "quant_observe",
      [](const GraphHandle& graph) {
        auto observation = std::make_shared<quant::Observation>();
        ExecutableHandle executable;
        executable.graph = graph.graph;
        executable.executable =
            ValueOrThrow(quant::MakeObservingExecutable(*graph.graph, graph.WeightsOrThrow(), observation), kError);
        return py::make_tuple(py::cast(std::move(executable)), observation);
      },
      py::arg("graph"), "An executable that runs the graph unchanged and fills the observation beside it.");
  m.def(
      "quant_convert",
      [](const GraphHandle& graph, const quant::Observation& observation, const py::dict& options) {
        const quant::QuantConfig config = ConfigOf(options);
        const std::vector<at::Tensor>& weights = graph.WeightsOrThrow();
        auto converted = [&] {
          const py::gil_scoped_release unlocked;
          return quant::Convert(*graph.graph, weights, observation, config);
        }();
        quant::QuantizedGraph quantized = ValueOrThrow(std::move(converted), kError);
        QuantizedHandle handle;
        handle.reference = Handle(std::move(quantized.reference), graph.weights);
        handle.lowered = Handle(std::move(quantized.lowered), graph.weights);
        handle.lowering_note = std::move(quantized.lowering_note);
        handle.report = std::move(quantized.report);
        return handle;
      },
      py::arg("graph"), py::arg("observation"), py::arg("options") = py::dict(),
      "Quantizes a graph with what calibration saw.");
  m.def(
      "quant_lower",
      [](const GraphHandle& reference) {
        return Handle(ValueOrThrow(quant::Lower(*reference.graph), kError), reference.weights);
      },
      py::arg("reference"), "The int8 kernels of a reference graph, as after loading it from a file.");
  m.def("quant_full_range", &quant::CpuTakesFullRange, "Whether activations use 0..255 on this CPU (else 0..127).");
}

}  // namespace frametap
