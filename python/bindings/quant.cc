// quant_observe, quant_convert, quant_lower: the quantization backend as Python sees it. Every decision is in C++; here
// only names and types change.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "absl/strings/str_cat.h"
#include "backends/callable/values.h"
#include "backends/onednn/library.h"
#include "backends/quant/choose.h"
#include "backends/quant/finite_checks.h"
#include "backends/quant/kernel_tensor.h"
#include "backends/quant/observe.h"
#include "backends/quant/operators.h"
#include "backends/quant/quant_backend.h"
#include "backends/quant/quantize.h"
#include "python/bindings/bindings.h"
#include "python/bindings/errors.h"
#include "python/bindings/op_rows.h"

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

}  // namespace

quant::QuantConfig QuantConfigOf(const py::dict& options) {
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
    } else if (name == "choices") {
      config.choices = py::cast<std::shared_ptr<quant::Choices>>(value);
    } else if (name == "bias_correction") {
      config.bias_correction = py::cast<bool>(value);
    } else if (name == "float_dtype") {
      const std::string dtype = py::cast<std::string>(value);
      if (dtype != "float32" && dtype != "bfloat16") {
        Refuse(absl::StrCat("float_dtype must be 'float32' or 'bfloat16', not '", dtype, "'"));
      }
      config.float_dtype = dtype == "float32" ? at::kFloat : at::kBFloat16;
    } else if (name == "measure") {
      config.measure = py::cast<bool>(value);
    } else {
      Refuse(absl::StrCat("unknown option '", name,
                          "'; known are observer, activation_bits, float_ops, float_scopes, bias_correction, "
                          "float_dtype, choices, measure"));
    }
  }
  return config;
}

namespace {

py::object Number(const std::optional<double>& number) { return number ? py::object(py::float_(*number)) : py::none(); }

py::list Rows(const std::vector<quant::OpReport>& report) {
  return OpRows(report, [](const quant::OpReport& r, py::dict& row) {
    row["decision"] = quant::ToString(r.decision);
    row["reason"] = r.reason;
    row["sqnr"] = Number(r.sqnr);
    row["cumulative_sqnr"] = Number(r.cumulative_sqnr);
    row["not_comparable"] = r.not_comparable;
  });
}

struct QuantizedHandle {
  GraphHandle reference;
  GraphHandle lowered;
  std::string lowering_note;
  std::vector<quant::OpReport> report;
};

using QuantBackendHandle = std::shared_ptr<quant::QuantBackend>;

GraphHandle Handle(Graph graph, const std::vector<at::Tensor>& weights) {
  GraphHandle handle;
  handle.graph = std::make_shared<const Graph>(std::move(graph));
  handle.weights = weights;
  return handle;
}

QuantizedHandle HandleOf(quant::QuantizedGraph quantized, const std::vector<at::Tensor>& weights) {
  QuantizedHandle handle;
  handle.reference = Handle(std::move(quantized.reference), weights);
  handle.lowered = Handle(std::move(quantized.lowered), weights);
  handle.lowering_note = std::move(quantized.lowering_note);
  handle.report = std::move(quantized.report);
  return handle;
}

}  // namespace

void BindQuant(py::module_& m) {
  quant::RegisterOperators();

  py::class_<quant::Choices, std::shared_ptr<quant::Choices>>(
      m, "QuantChoices", "The form of each layer: the quickest of those that keep a signal to noise, in dB.")
      .def(py::init<double>(), py::arg("least_sqnr"));
  py::class_<quant::Observation, std::shared_ptr<quant::Observation>>(m, "Observation",
                                                                      "The observations of calibration for one graph.")
      .def_property_readonly("runs", &quant::Observation::runs)
      .def_property_readonly("kept", [](const quant::Observation& observation) {
        py::list runs;
        for (const auto& inputs : quant::ObservationView::Of(observation).kept) {
          py::list run;
          for (const c10::IValue& input : inputs) run.append(ToPython(input));
          runs.append(std::move(run));
        }
        return runs;
      });

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
        const quant::QuantConfig config = QuantConfigOf(options);
        const std::vector<at::Tensor>& weights = graph.WeightsOrThrow();
        auto converted = [&] {
          const py::gil_scoped_release unlocked;
          return quant::Convert(*graph.graph, weights, observation, config);
        }();
        return HandleOf(ValueOrThrow(std::move(converted), kError), weights);
      },
      py::arg("graph"), py::arg("observation"), py::arg("options") = py::dict(),
      "Quantizes a graph with the observations of calibration.");
  m.def(
      "quant_lower",
      [](const GraphHandle& reference, bool checks_finite) {
        Graph lowered = ValueOrThrow(quant::Lower(*reference.graph), kError);
        return Handle(checks_finite ? quant::WithFiniteChecks(lowered) : std::move(lowered), reference.weights);
      },
      py::arg("reference"), py::arg("checks_finite") = false,
      "The int8 kernels of a reference graph, as after loading it from a file.");
  m.def("take_not_finite", &quant::TakeNotFinite,
        "The first finding of the checks of this thread since the last call: \"the input x\", or \"\".");
  py::class_<quant::QuantBackend, Backend, QuantBackendHandle>(
      m, "QuantBackend",
      "Runs graphs as they are until calibration ends, and makes int8 ones of all that are recorded then.")
      .def(py::init<bool>(), py::arg("checks_finite") = false)
      .def(
          "add",
          [](quant::QuantBackend& self, const GraphHandle& graph, const quant::Observation& observation) {
            self.conversions().Add(*graph.graph, graph.WeightsOrThrow(), observation);
          },
          py::arg("graph"), py::arg("observation"), "The observations of calibration for a graph.")
      .def(
          "convert",
          [](quant::QuantBackend& self, const GraphHandle& graph, const quant::Observation& observation,
             const py::dict& options) {
            const quant::QuantConfig config = QuantConfigOf(options);
            const std::vector<at::Tensor>& weights = graph.WeightsOrThrow();
            auto converted = [&] {
              const py::gil_scoped_release unlocked;
              return self.conversions().ConvertCalibrated(*graph.graph, weights, observation, config);
            }();
            quant::Converted one = ValueOrThrow(std::move(converted), kError);
            ExecutableHandle executable;
            executable.graph = graph.graph;
            QuantizedHandle handle = HandleOf(one.quantized, weights);
            executable.executable = ValueOrThrow(self.MakeExecutable(std::move(one)), kError);
            return py::make_tuple(py::cast(std::move(handle)), py::cast(std::move(executable)));
          },
          py::arg("graph"), py::arg("observation"), py::arg("options"),
          "The int8 form of a graph that was added, and what runs it.")
      .def("end_calibration", &quant::QuantBackend::EndCalibration);
  m.def(
      "quant_of",
      [](const ExecutableHandle& handle) -> py::object {
        const auto* executable = dynamic_cast<const quant::QuantExecutable*>(handle.executable.get());
        if (executable == nullptr) return py::none();
        py::dict d;
        d["runs"] = executable->runs();
        d["is_int8"] = executable->converted().is_int8;
        py::list lost;
        for (const quant::LostLayer& one : executable->converted().lost)
          lost.append(py::make_tuple(one.layer, one.why));
        d["lost"] = lost;
        d["extrapolated"] = executable->converted().extrapolated;
        d["quantized"] = HandleOf(executable->converted().quantized, {});
        return d;
      },
      py::arg("executable"), "The form of a graph in a quantized function, or None for other functions.");
  m.def(
      "quant_kernels",
      [](const std::vector<const QuantizedHandle*>& quantized) {
        std::vector<const Graph*> graphs;
        for (const QuantizedHandle* handle : quantized) graphs.push_back(handle->lowered.graph.get());
        const quant::KernelTotals totals = quant::CountKernels(graphs);
        py::dict d;
        d["layers"] = totals.kernels;
        d["sizes"] = totals.counts.sizes;
        d["made"] = totals.counts.made;
        d["dropped"] = totals.counts.dropped;
        return d;
      },
      py::arg("quantized"), "The kernels that oneDNN has made for these graphs.");
  m.def(
      "onednn_problem", [] { return std::string(onednn::Load().message()); }, "Why oneDNN cannot be used, or \"\".");
  m.def("onednn_version", &onednn::Version);
  m.def(
      "kernels_share_threads",
      [] {
#ifdef _OPENMP
        return true;
#else
        return false;
#endif
      },
      "Whether this build's own kernels run on all threads of torch.");
  m.def("bfloat16_products", &onednn::HasBfloat16Products, "Whether this CPU multiplies bfloat16.");
  m.def("quant_full_range", &onednn::HasExactProducts, "Whether activations use 0..255 on this CPU (else 0..127).");
}

}  // namespace frametap
