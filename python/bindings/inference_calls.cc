// InferenceCalls: how quantized and frozen models are called.
//   C1  A call runs the captured form. Neither a tracer nor a session around it sees into it, as with any function in C.
//   C2  A usual call does not pass nn.Module.__call__ and `forward`: it goes from the slot of the class to the captured
//       form. Everything unusual (hooks, recordings, tracers, autocast) is left to them. Only the slot is taken: the
//       attribute `__call__` is nn.Module's, which compilers and tracers know.
//   C3  A quiet call ran in converted graphs throughout. It is counted. Other calls end in `_end_call` of the model.
#include <ATen/core/grad_mode.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include "backends/freeze/freeze_backend.h"
#include "backends/quant/finite_checks.h"
#include "backends/quant/quant_backend.h"
#include "frame_eval/cpython/eval_function.h"
#include "frame_eval/interpreter/hook.h"
#include "frame_eval/record/fast_paths/module_calls.h"
#include "frame_eval/session/compiled_function.h"
#include "frame_eval/session/module_route.h"
#include "frame_eval/session/session.h"
#include "guards/kinds/world.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/well_known_objects.h"
#include "guards/ref.h"
#include "guards/throw_if_null.h"
#include "ir/autocast.h"
#include "python/bindings/bindings.h"
#include "python/bindings/plain_layers.h"

namespace frametap {
namespace {

namespace py = pybind11;

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
bool RunsPlainParts(SegmentCache& store) {
  for (const LogEntry& entry : store.log()) {
    if (entry.kind == LogEntry::Kind::kBreak || entry.kind == LogEntry::Kind::kAbort) return true;
  }
  return false;
}

// The calls of one model.
struct InferenceCalls {
  OwnWeights weights;
  std::shared_ptr<freeze::FreezeBackend> freezes;  // null of static int8
  uint64_t quiet = 0;                              // C3
  ModuleRoute route;                               // C2
};

// C1. Gives null with an exception set, and what did not run as converted, if anything.
py::object Run(PyObject* compiled, InferenceCalls& calls, PyObject* args, PyObject* kwargs, py::object* problem) {
  const std::shared_ptr<SegmentCache> store = StoreOf(compiled);
  const uint64_t segments_before = store->hits + store->recordings;
  const uint64_t recordings_before = store->recordings;
  quant::Tally tally;
  const quant::FiniteNotes notes;
  const PlainLayers plain_layers(tally, calls.weights, RunsPlainParts(*store));
  py::object result;
  {
    const quant::TallyScope scope(&tally);
    const FusedAttentionPause attention;
    const DynamoPause dynamo;
    const HookPause frames;
    const TracingPause tracers;
    const c10::AutoGradMode no_grad(false);
    result = py::reinterpret_steal<py::object>(PyObject_Call(compiled, args, kwargs));
  }
  if (!result) return result;
  // Under modes, all graphs belong to the Python code of the mode.
  const bool is_plain = tally.int8 == 0 && (store->hits + store->recordings == segments_before || HasActiveModes());
  // Only where a graph was recorded may there be something new to say of frozen graphs.
  const bool is_new = calls.freezes != nullptr && store->recordings != recordings_before;
  const bool has_problems = calls.freezes != nullptr && calls.freezes->has_problems();
  if (tally.recorded == 0 && tally.unconverted == 0 && !is_plain && plain_layers.count() == 0 && !has_problems &&
      !is_new && notes.first().empty()) {
    ++calls.quiet;
    return result;
  }
  py::dict said;
  said["recorded"] = tally.recorded;
  said["unconverted"] = tally.unconverted;
  py::list lost;
  for (const quant::LostLayer& one : tally.lost) lost.append(one.Text());
  said["lost"] = lost;
  said["not_finite"] = notes.first();
  said["plain_layer"] = plain_layers.first();
  said["modes"] = ActiveModes();
  *problem = std::move(said);
  return result;
}

py::tuple CallConverted(const py::object& compiled, InferenceCalls& calls, const py::tuple& args,
                        const py::dict& kwargs) {
  if (!IsCompiledFunction(compiled.ptr())) throw py::type_error("not a compiled function");
  py::object problem = py::none();
  const py::object result = Run(compiled.ptr(), calls, args.ptr(), kwargs.ptr(), &problem);
  if (!result) throw py::error_already_set();
  return py::make_tuple(result, problem);
}

// torch.export and torch.fx show themselves in these.
bool IsExporting() {
  static PyObject* const variables = py::object(py::module_::import("torch.compiler").attr("__dict__")).release().ptr();
  static PyObject* const name = InternedName("_is_exporting_flag");
  return PyDict_GetItemWithError(variables, name) != Py_False;
}

bool IsProxy(PyObject* value) {
  static PyObject* const proxy = py::object(py::module_::import("torch.fx").attr("Proxy")).release().ptr();
  if (Py_TYPE(value) == Objects().tensor) return false;
  const int is_proxy = PyObject_IsInstance(value, proxy);
  if (is_proxy < 0) PyErr_Clear();
  return is_proxy != 0;
}

bool HasProxy(PyObject* args, PyObject* kwargs) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); ++i) {
    if (IsProxy(PyTuple_GET_ITEM(args, i))) return true;
  }
  PyObject *key, *value;
  for (Py_ssize_t at = 0; kwargs != nullptr && PyDict_Next(kwargs, &at, &key, &value) != 0;) {
    if (IsProxy(value)) return true;
  }
  return false;
}

bool IsUsual(PyObject* model, InferenceCalls& calls, PyObject* args, PyObject* kwargs) {
  PyObject* const forward = calls.route.ForwardOf(model);
  return forward != nullptr && PyFunction_GET_CODE(forward) == reinterpret_cast<PyObject*>(OwnExecutable()) &&
         !Session::IsRecording() && !torch::jit::tracer::isTracing() && !at::autocast::is_autocast_enabled(at::kCPU) &&
         !IsExporting() && !HasProxy(args, kwargs);
}

// C2. Gives the captured form, or null if the call is not a usual one.
PyObject* CompiledOfUsual(PyObject* model, InferenceCalls& calls, PyObject* args, PyObject* kwargs) {
  static PyObject* const name = InternedName("_frametap");
  if (!IsUsual(model, calls, args, kwargs)) return nullptr;
  PyObject* const compiled = PyDict_GetItemWithError(*_PyObject_GetDictPtr(model), name);
  return compiled != nullptr && IsCompiledFunction(compiled) ? compiled : nullptr;
}

PyObject* CallAsModule(PyObject* model, PyObject* args, PyObject* kwargs) {
  static PyObject* const name = InternedName("__call__");
  const auto call = py::reinterpret_borrow<py::object>(_PyType_Lookup(Py_TYPE(model), name));
  const auto bound = py::reinterpret_steal<py::object>(PyMethod_New(call.ptr(), model));
  return bound ? PyObject_Call(bound.ptr(), args, kwargs) : nullptr;
}

// C2. The slot of the class.
PyObject* CallModel(PyObject* model, PyObject* args, PyObject* kwargs) {
  static PyObject* const calls_name = InternedName("_calls");
  static PyObject* const end_name = InternedName("_end_call");
  try {
    PyObject** const dict = _PyObject_GetDictPtr(model);
    PyObject* const own = dict == nullptr || *dict == nullptr ? nullptr : PyDict_GetItemWithError(*dict, calls_name);
    if (own == nullptr) return CallAsModule(model, args, kwargs);  // its constructor is not through
    const auto kept = py::reinterpret_borrow<py::object>(own);
    auto& calls = py::cast<InferenceCalls&>(kept);
    const auto compiled = py::reinterpret_borrow<py::object>(CompiledOfUsual(model, calls, args, kwargs));
    if (!compiled) return CallAsModule(model, args, kwargs);
    py::object problem;
    py::object result = Run(compiled.ptr(), calls, args, kwargs, &problem);
    if (!result || !problem) return result.release().ptr();
    const Ref<> ended = Ref<>::Steal(PyObject_CallMethodOneArg(model, end_name, problem.ptr()));
    return ended ? result.release().ptr() : nullptr;
  } catch (py::error_already_set& error) {
    error.restore();
    return nullptr;
  }
}

}  // namespace

void BindInferenceCalls(py::module_& m) {
  m.def("enter_fused_attention_off", &FusedAttentionPause::Enter);
  m.def("leave_fused_attention_off", &FusedAttentionPause::Leave);
  py::class_<InferenceCalls>(m, "InferenceCalls", "How a converted model is called, and how often it ran as such.")
      .def(py::init([](const py::sequence& parameters, std::shared_ptr<freeze::FreezeBackend> freezes) {
             std::vector<at::Tensor> tensors;
             for (const py::handle parameter : parameters) tensors.push_back(TensorOf(parameter.ptr()));
             return std::unique_ptr<InferenceCalls>(new InferenceCalls{OwnWeights(tensors), std::move(freezes), 0, {}});
           }),
           py::arg("parameters"), py::arg("freezes"), "`parameters`: of the model, which outlives this.")
      .def_readonly("quiet", &InferenceCalls::quiet);
  m.def("call_converted", &CallConverted, py::arg("compiled"), py::arg("calls"), py::arg("args"), py::arg("kwargs"));
  m.def(
      "answer_calls",
      [](const py::type& kind) {
        auto* const type = reinterpret_cast<PyTypeObject*>(kind.ptr());
        if (type->tp_call != CallModel) type->tp_call = CallModel;
      },
      py::arg("kind"),
      "Takes the slot of a class of converted models, which Python fills again where `__call__` changes.");
}

}  // namespace frametap
