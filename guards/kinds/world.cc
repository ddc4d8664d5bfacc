// World: the state of the thread, read from torch's thread-local variables without a call into Python.
#include "guards/kinds/world.h"

#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/PyInterpreter.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "guards/cpython/watch.h"
#include "guards/kinds/anomaly_mode.h"
#include "guards/kinds/attention_switches.h"
#include "guards/objects/import.h"
#include "guards/objects/torch_tensor.h"
#include "guards/ref.h"
#include "guards/throw_if_null.h"
#include "ir/autocast.h"

namespace frametap {

namespace {

// For a function that is made in torch.utils.checkpoint._checkpoint_hook.__init__.
bool IsCodeOfCheckpoint(PyObject* code) {
  static PyObject* const maker = [] {
    ErrScope keep;
    Ref<> object = ImportModule("torch.utils.checkpoint");
    for (const char* part : {"_checkpoint_hook", "__init__", "__code__"}) {
      if (object) object = Ref<>::Steal(PyObject_GetAttrString(object.get(), part));
    }
    PyErr_Clear();
    return object && PyCode_Check(object.get()) ? object.Release() : nullptr;
  }();
  PyObject* const constants = maker != nullptr ? reinterpret_cast<PyCodeObject*>(maker)->co_consts : nullptr;
  for (Py_ssize_t i = 0; constants != nullptr && i < PyTuple_GET_SIZE(constants); ++i) {
    if (PyTuple_GET_ITEM(constants, i) == code) return true;
  }
  return false;
}

// Hooks on saved tensors run in the middle of an op. The program's own hooks may see work that a replay has not done
// yet, and hooks of a recomputation end it by an exception. Hooks of the forward pass of torch.utils.checkpoint only
// count.
bool SavingRunsProgramCode() {
  const auto& hooks = at::SavedTensorDefaultHooks::get_tls_state().stack;
  if (hooks.empty()) return false;
  PyObject* pack = hooks.top().first.ptr(getPyInterpreter());
  return !PyFunction_Check(pack) || !IsCodeOfCheckpoint(PyFunction_GET_CODE(pack));
}

// In words; empty where nothing stands between a call and its op.
absl::string_view ModesNow() {
  const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  // There ops are not seen, or have no gradient whatever their arguments ask for.
  const bool below_autograd =
      keys.excluded_.has(c10::DispatchKey::AutogradOther) && !c10::AutogradState::get_tls_state().get_inference_mode();
  if (below_autograd || keys.excluded_.has(c10::DispatchKey::DeferredInit))
    return "code below autograd, such as the kernel of an op";
  if (at::impl::PythonTorchFunctionTLS::stack_len() > 0) return "a torch function mode, or a default device";
  if (c10::impl::TorchDispatchModeTLS::any_modes_set()) return "a torch dispatch mode";
  if (keys.included_.has(c10::DispatchKey::FuncTorchDynamicLayerFrontMode)) return "a transform of torch.func";
  if (keys.included_.has(c10::DispatchKey::Tracer)) return "torch.jit.trace";
  if (keys.included_.has(c10::DispatchKey::Functionalize)) return "functionalization";
  const c10::DispatchKeySet autocast_on = c10::autocast_dispatch_keyset - keys.excluded_;
  if (!(autocast_on - c10::DispatchKeySet(c10::DispatchKey::AutocastCPU)).empty()) return "autocast of another device";
  if (at::impl::PythonTorchFunctionTLS::get_disabled_state() != at::impl::TorchFunctionDisabledState::ENABLED) {
    return "torch functions of subclasses are switched off";
  }
  if (SavingRunsProgramCode()) return "hooks on saved tensors";
  return "";
}

// A number that grows when an attribute of torch.nn.Parameter or of a class it derives from becomes another object. The
// version of the type is only the quick answer: pickling, for one, notes `__slotnames__` in the class.
constexpr uint32_t kNotKnown = UINT32_MAX;

uint32_t TensorClassNow() {
  struct Seen {
    uint32_t version = 0, changes = 0;
    std::vector<Ref<>> dicts;
  };
  static auto* seen = new Seen();
  PyTypeObject* parameter = ParameterClassOfTorch();
  if (parameter == nullptr) return 0;
  const uint32_t version = TypeVersion(parameter);
  if (version != 0 && version == seen->version) return seen->changes;
  ErrScope keep;
  static PyObject* const noted = InternedName("__slotnames__");
  std::vector<Ref<>> dicts;
  bool same = true;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(parameter->tp_mro); ++i) {
    auto* type = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(parameter->tp_mro, i));
    Ref<> dict = Ref<>::Steal(PyDict_Copy(type->tp_dict));
    if (!dict) return kNotKnown;
    if (PyDict_Contains(dict.get(), noted) == 1) PyDict_DelItem(dict.get(), noted);
    const size_t at = dicts.size();
    same = same && at < seen->dicts.size() && PyDict_GET_SIZE(dict.get()) == PyDict_GET_SIZE(seen->dicts[at].get());
    Py_ssize_t position = 0;
    PyObject *name, *value;
    while (same && PyDict_Next(dict.get(), &position, &name, &value)) {
      same = PyDict_GetItemWithError(seen->dicts[at].get(), name) == value;
    }
    dicts.push_back(std::move(dict));
  }
  seen->version = version;
  if (same) return seen->changes;
  seen->dicts = std::move(dicts);
  return ++seen->changes;
}

}  // namespace

std::string ActiveModes() { return std::string(ModesNow()); }
bool HasActiveModes() { return !ModesNow().empty(); }

uint16_t WorldState::BackendsNow() {
  const at::Context& context = at::globalContext();
  const std::optional<bool> checks_sparse = context.checkSparseTensorInvariants();
  // Five bits: the floating dtypes of autocast are below 31.
  const int dtype_of_cuda = std::min(static_cast<int>(at::autocast::get_autocast_dtype(at::DeviceType::CUDA)), 31);
  return static_cast<uint16_t>(context.userEnabledCuDNN() << 0 | context.userEnabledMkldnn() << 1 |
                               AttentionSwitches::Now().AsNumber() << kFirstAttentionBit |
                               context.benchmarkCuDNN() << 6 | context.deterministicCuDNN() << 7 |
                               context.userEnabledNNPACK() << 8 | checks_sparse.has_value() << 9 |
                               checks_sparse.value_or(false) << 10 | dtype_of_cuda << 11);
}

WorldState WorldState::Now() {
  const c10::AutogradState& autograd = c10::AutogradState::get_tls_state();
  const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  // A device's autocast is on where its key is not excluded; other devices' autocast is not modelled.
  const c10::DispatchKeySet autocast_on = c10::autocast_dispatch_keyset - keys.excluded_;

  WorldState state{};
  state.grad_mode = autograd.get_grad_mode();
  state.forward_grad = autograd.get_fw_grad_mode();
  state.inference_mode = autograd.get_inference_mode();
  state.autocast_cpu = autocast_on.has(c10::DispatchKey::AutocastCPU);
  state.autocast_dtype = static_cast<int8_t>(at::autocast::get_autocast_dtype(at::DeviceType::CPU));
  state.autocast_cache = at::autocast::is_autocast_cache_enabled();
  state.anomaly_mode = AnomalyModeOfProgram();
  state.default_dtype = static_cast<int8_t>(c10::get_default_dtype_as_scalartype());
  state.deterministic = at::globalContext().deterministicAlgorithms();
  state.backends = BackendsNow();
  state.tensor_class = TensorClassNow();
  state.modes_active = !ModesNow().empty();
  return state;
}

bool IsKnown(const WorldState& state) { return state.tensor_class != kNotKnown; }

namespace {

// All fields that have words, in the order in which a text shows them.
std::vector<StateFact> AllFacts(const WorldState& s) {
  const auto dtype = [](int8_t number) { return static_cast<c10::ScalarType>(number); };
  return {
      {StateField::kGradMode, s.grad_mode},
      {StateField::kInferenceMode, s.inference_mode},
      {StateField::kAutocast, s.autocast_cpu, s.autocast_cpu ? dtype(s.autocast_dtype) : c10::ScalarType::Undefined},
      {StateField::kAutocastDtype, true, dtype(s.autocast_dtype)},
      {StateField::kDefaultDtype, true, dtype(s.default_dtype)},
      {StateField::kAutocastCache, s.autocast_cache},
      {StateField::kForwardGrad, s.forward_grad},
      {StateField::kAnomalyMode, s.anomaly_mode},
      {StateField::kDeterministic, s.deterministic},
      {StateField::kModes, s.modes_active}};
}

}  // namespace

std::vector<StateFact> ShownFacts(const WorldState& state) {
  std::vector<StateFact> facts = AllFacts(state);
  std::erase_if(facts, [](const StateFact& fact) { return !IsShown(fact); });
  return facts;
}

bool DescribeStateMiss(const WorldState& want, const WorldState& got, MissReport* report) {
  if (want == got) return false;
  report->source = "state";
  report->want = "torch.Tensor as recorded";
  report->got = "an attribute of torch.Tensor or torch.nn.Parameter has changed";
  const std::vector<StateFact> wanted = AllFacts(want), found = AllFacts(got);
  if (const auto [a, b] = std::mismatch(wanted.begin(), wanted.end(), found.begin()); a != wanted.end()) {
    report->want = ToString(*a);
    report->got = ToString(*b);
  } else if (want.backends != got.backends) {
    report->want = "torch.backends and autocast's dtypes as recorded";
    report->got = "a switch of torch.backends, or autocast's dtype of another device has changed";
  }
  report->why = absl::StrCat(report->got, " != ", report->want);
  return true;
}

}  // namespace frametap
