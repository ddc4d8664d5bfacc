// quant_observe, quant_convert, quant_lower: the quantization backend as Python sees it. Every decision is in C++; here
// only names and types change.
#include <ATen/core/grad_mode.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "absl/strings/str_cat.h"
#include "backends/callable/values.h"
#include "backends/onednn/library.h"
#include "backends/quant/choose.h"
#include "backends/quant/kernel_tensor.h"
#include "backends/quant/observe.h"
#include "backends/quant/operators.h"
#include "backends/quant/quant_backend.h"
#include "backends/quant/quantize.h"
#include "frame_eval/compiled_function.h"
#include "frame_eval/cpython/eval_function.h"
#include "frame_eval/hook.h"
#include "guards/kinds/world.h"
#include "guards/ref.h"
#include "guards/tensor_door.h"
#include "python/bindings/bindings.h"
#include "python/bindings/errors.h"
#include "python/bindings/op_rows.h"
#include "python/bindings/plain_layers.h"

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
    } else if (name == "measure") {
      config.measure = py::cast<bool>(value);
    } else {
      Refuse(absl::StrCat(
          "unknown option '", name,
          "'; known are observer, activation_bits, float_ops, float_scopes, bias_correction, choices, measure"));
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

// While alive, torch.compile looks at no frame of this thread.
class DynamoPause {
 public:
  DynamoPause() {
    if (GetEvalFunction() == EvalDefault()) return;
    set_ = py::module_::import("torch._C").attr("_dynamo").attr("eval_frame").attr("set_eval_frame");
    previous_ = set_(py::none());
  }
  ~DynamoPause() {
    if (!set_) return;
    const ErrScope keep;
    const Ref<> done = Ref<>::Steal(PyObject_CallOneArg(set_.ptr(), previous_.ptr()));
    if (!done) PyErr_WriteUnraisable(set_.ptr());
  }
  DynamoPause(const DynamoPause&) = delete;
  DynamoPause& operator=(const DynamoPause&) = delete;

 private:
  py::object set_, previous_;
};

// Turns off torch's fused kernels of attention and encoder layers, which hide their linear layers. torch has one switch for
// all threads, a variable of a module. It is as it was once no call of an int8 model is under way; what other threads
// compute meanwhile is right, by the kernels that training takes. Under Python's lock.
class FusedAttentionPause {
 public:
  static void Enter() {
    if (depth_ == 0) {
      PyObject* const now = PyDict_GetItemWithError(Variables(), Name());
      if (now == nullptr) throw py::key_error("torch.backends.mha has no switch for fused attention");
      before_ = py::reinterpret_borrow<py::object>(now).release().ptr();
      if (before_ != Py_False && PyDict_SetItem(Variables(), Name(), Py_False) != 0) throw py::error_already_set();
    }
    ++depth_;
  }
  static void Leave() {
    if (--depth_ != 0) return;
    const ErrScope keep;
    if (before_ != Py_False && PyDict_SetItem(Variables(), Name(), before_) != 0) PyErr_WriteUnraisable(before_);
    Py_CLEAR(before_);
  }

  FusedAttentionPause() { Enter(); }
  ~FusedAttentionPause() { Leave(); }
  FusedAttentionPause(const FusedAttentionPause&) = delete;
  FusedAttentionPause& operator=(const FusedAttentionPause&) = delete;

 private:
  static PyObject* Variables() {
    static PyObject* const variables =
        py::object(py::module_::import("torch.backends.mha").attr("__dict__")).release().ptr();
    return variables;
  }
  static PyObject* Name() {
    static PyObject* const name = PyUnicode_InternFromString("_is_fastpath_enabled");
    return name;
  }

  static inline int depth_ = 0;
  static inline PyObject* before_ = nullptr;
};

// Returns whether a graph of the function has ended before its end, so that plain Python runs a part of a call.
bool RunsPlainParts(Store& store) {
  for (const LogEntry& entry : store.log()) {
    if (entry.kind == LogEntry::Kind::kBreak || entry.kind == LogEntry::Kind::kAbort) return true;
  }
  return false;
}

// Calls the captured form of a quantized function, and gives beside the result what did not run in int8, or None. Neither
// a tracer nor a session around the call sees into it, as with any function in C.
py::tuple CallQuantized(const py::object& compiled, const OwnWeights& weights, const py::tuple& args,
                        const py::dict& kwargs) {
  if (!IsCompiledFunction(compiled.ptr())) throw py::type_error("not a compiled function");
  const std::shared_ptr<Store> store = StoreOf(compiled.ptr());
  const uint64_t segments_before = store->hits + store->recordings;
  quant::Tally tally;
  const PlainLayers plain_layers(tally, weights, RunsPlainParts(*store));
  py::object result;
  {
    const quant::TallyScope scope(&tally);
    const FusedAttentionPause attention;
    const DynamoPause dynamo;
    const HookPause frames;
    const TracingPause tracers;
    const c10::AutoGradMode no_grad(false);
    result = py::reinterpret_steal<py::object>(PyObject_Call(compiled.ptr(), args.ptr(), kwargs.ptr()));
  }
  if (!result) throw py::error_already_set();
  // Under modes, all graphs belong to the Python code of the mode.
  const bool is_plain =
      tally.int8 == 0 && (store->hits + store->recordings == segments_before || !ActiveModes().empty());
  if (tally.recorded == 0 && tally.unconverted == 0 && !is_plain && plain_layers.count() == 0)
    return py::make_tuple(result, py::none());
  py::dict problem;
  problem["int8"] = tally.int8;
  problem["recorded"] = tally.recorded;
  problem["unconverted"] = tally.unconverted;
  problem["lost"] = tally.lost;
  problem["is_plain"] = is_plain;
  problem["plain_layer"] = plain_layers.first();
  problem["modes"] = ActiveModes();
  return py::make_tuple(result, problem);
}

}  // namespace

void BindQuant(py::module_& m) {
  quant::RegisterOperators();

  py::class_<quant::Choices, std::shared_ptr<quant::Choices>>(
      m, "QuantChoices", "The form of each layer: the quickest of those that keep a signal to noise, in dB.")
      .def(py::init<double>(), py::arg("least_sqnr"));
  py::class_<quant::Observation, std::shared_ptr<quant::Observation>>(m, "Observation",
                                                                      "What calibration saw of one graph.")
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
      "Quantizes a graph with what calibration saw.");
  m.def(
      "quant_lower",
      [](const GraphHandle& reference) {
        return Handle(ValueOrThrow(quant::Lower(*reference.graph), kError), reference.weights);
      },
      py::arg("reference"), "The int8 kernels of a reference graph, as after loading it from a file.");
  py::class_<quant::QuantBackend, Backend, QuantBackendHandle>(
      m, "QuantBackend",
      "Runs graphs as they are until calibration ends, and makes int8 ones of all that are recorded then.")
      .def(py::init<>())
      .def(
          "add",
          [](quant::QuantBackend& self, const GraphHandle& graph, const quant::Observation& observation) {
            self.conversions().Add(*graph.graph, graph.WeightsOrThrow(), observation);
          },
          py::arg("graph"), py::arg("observation"), "What calibration saw of a graph.")
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
        d["lost"] = executable->converted().lost;
        d["quantized"] = HandleOf(executable->converted().quantized, {});
        return d;
      },
      py::arg("executable"), "What the backend of a quantized function has made of a graph; None for others.");
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
      py::arg("quantized"), "What oneDNN has made for the layers of these graphs.");
  m.def(
      "onednn_problem", [] { return std::string(onednn::Load().message()); }, "Why oneDNN cannot be used, or \"\".");
  m.def("onednn_version", &onednn::Version);
  m.def("enter_fused_attention_off", &FusedAttentionPause::Enter);
  m.def("leave_fused_attention_off", &FusedAttentionPause::Leave);
  py::class_<OwnWeights>(m, "OwnWeights", "The parameters of a quantized model, which outlives it.")
      .def(py::init([](const py::sequence& parameters) {
             std::vector<at::Tensor> tensors;
             for (const py::handle parameter : parameters) tensors.push_back(TensorOf(parameter.ptr()));
             return OwnWeights(tensors);
           }),
           py::arg("parameters"));
  m.def("call_quantized", &CallQuantized, py::arg("compiled"), py::arg("weights"), py::arg("args"), py::arg("kwargs"));
  m.def("bfloat16_products", &onednn::HasBfloat16Products, "Whether this CPU multiplies bfloat16.");
  m.def("quant_full_range", &onednn::HasExactProducts, "Whether activations use 0..255 on this CPU (else 0..127).");
}

}  // namespace frametap
