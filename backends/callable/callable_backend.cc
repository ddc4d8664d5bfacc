#include "backends/callable/callable_backend.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "backends/callable/thread_state.h"
#include "backends/callable/values.h"
#include "backends/holds_objects.h"
#include "guards/objects/thread_end.h"
#include "guards/objects/torch_tensor.h"
#include "ir/graph/builtin_op.h"
#include "ir/ops/op_facts.h"
#include "ir/passes/writes.h"

namespace frametap {

namespace py = pybind11;

namespace {

// A Python object whose last owner may be without the lock, or outlive the interpreter.
class Held {
 public:
  explicit Held(py::object object) : object_(std::move(object)) {}
  ~Held() {
    if (Py_IsInitialized()) {
      py::gil_scoped_acquire lock;
      object_ = py::object();
    } else {
      object_.release();
    }
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  const py::object& operator*() const { return object_; }

 private:
  py::object object_;
};

// Raises BackendError(text) with the exception as its cause; a BackendError stays as it is.
[[noreturn]] void RaiseAsBackendError(const std::string& name, py::error_already_set& error) {
  const py::object errors = Imported("frametap._errors"), type = errors.attr("BackendError");
  if (error.matches(type)) throw error;
  const std::string text = py::str(errors.attr("could_not_compile")(name, error.value()));
  py::raise_from(error, type.ptr(), text.c_str());
  throw py::error_already_set();
}

// Lets a compiler make its calls where the program is near its recursion limit: plain Python would not compile there.
class RoomForCalls {
 public:
  RoomForCalls() : limit_(Py_GetRecursionLimit()) { Py_SetRecursionLimit(limit_ + kCalls); }
  ~RoomForCalls() {
    if (Py_GetRecursionLimit() == limit_ + kCalls) Py_SetRecursionLimit(limit_);
  }
  RoomForCalls(const RoomForCalls&) = delete;
  RoomForCalls& operator=(const RoomForCalls&) = delete;

 private:
  static constexpr int kCalls = 1000;
  const int limit_;
};

bool IsWrappedNumber(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() && value.toTensor().unsafeGetTensorImpl()->is_wrapped_number();
}

// Numbers that follow from numbers of the inputs. Compilers have symbols for them, which neither overflow nor raise.
class NumberCheck {
 public:
  explicit NumberCheck(const Graph& graph) : inputs_(graph.inputs.size()) {
    absl::flat_hash_map<uint32_t, size_t> places;
    for (size_t i = 0; i < inputs_; ++i) {
      if (IsNumber(graph.value(graph.inputs[i]).type.kind)) places[graph.inputs[i].raw()] = i;
    }
    for (const Node& node : graph.nodes) {
      if (!node.is_scalar()) continue;
      Step step{node.builtin_op, {}};
      bool known = true;
      for (size_t i = 0; i < node.args.size(); ++i) {
        const Arg& arg = node.args[i];
        const auto place = arg.kind == Arg::Kind::kValue ? places.find(arg.value.raw()) : places.end();
        known = known && (arg.kind == Arg::Kind::kConst || place != places.end());
        if (known) step.operands[i] = place == places.end() ? Operand{arg.constant, 0} : Operand{{}, place->second};
      }
      if (!known) continue;
      places[node.outputs[0].raw()] = inputs_ + steps_.size();
      steps_.push_back(std::move(step));
    }
  }

  // Throws what ops on numbers throw.
  void Run(const std::vector<c10::IValue>& inputs) const {
    if (steps_.empty()) return;
    std::vector<c10::IValue> made;
    made.reserve(steps_.size());
    const auto of = [&](const Operand& operand) -> const c10::IValue& {
      if (!operand.constant.isNone()) return operand.constant;
      return operand.place < inputs_ ? inputs[operand.place] : made[operand.place - inputs_];
    };
    for (const Step& step : steps_) made.push_back(Evaluate(step.op, of(step.operands[0]), of(step.operands[1])));
  }

 private:
  struct Operand {
    c10::IValue constant = 0;  // None for the value at `place`
    size_t place = 0;          // of an input, or after them of a step
  };
  struct Step {
    BuiltinOp op;
    Operand operands[2];  // an op of one argument ignores the second
  };

  static bool IsNumber(Type::Kind kind) {
    return kind == Type::Kind::kInt || kind == Type::Kind::kFloat || kind == Type::Kind::kBool;
  }

  size_t inputs_;
  std::vector<Step> steps_;
};

class CallableExecutable : public Executable, public HoldsObjects {
 public:
  // `compiles`: the program compiles the graph, it does not run it as it is.
  // `fixed`: sizes and strides of the inputs are the recorded ones at each run.
  // `as_recorded`: dtypes of results follow from dtypes of the inputs.
  CallableExecutable(py::object program, bool compiles, bool fixed, bool as_recorded, const Graph& graph)
      : program_(std::move(program)),
        compiles_(compiles),
        numbers_(graph),
        facts_follow_(compiles && as_recorded && FactsFollow(graph, fixed)),
        sizes_follow_(facts_follow_ && fixed) {
    for (ValueId id : graph.outputs) {
      Type& type = types_.emplace_back(graph.value(id).type);
      // A value without a recorded type (a graph parsed from a short text) may be anything.
      if (type.kind == Type::Kind::kNone) type.kind = Type::Kind::kOpaque;
    }
    const std::vector<bool> written = WrittenValues(graph);
    const auto is_written = [&](ValueId id) { return id.raw() < written.size() && written[id.raw()]; };
    if (std::any_of(graph.inputs.begin(), graph.inputs.end(), is_written)) return;
    for (size_t i = 0; i < graph.inputs.size(); ++i) {
      if (graph.value(graph.inputs[i]).type.kind == Type::Kind::kTensor) read_only_.push_back(i);
    }
  }

  std::vector<c10::IValue> Run(const std::vector<c10::IValue>& inputs, bool* changed) override {
    numbers_.Run(inputs);
    *changed = true;
    py::gil_scoped_acquire lock;
    py::tuple args(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) args[i] = ToPython(inputs[i]);
    const KeptThreadState state;
    const auto versions = Versions(inputs);
    const bool runs_plain = compiles_ && std::any_of(inputs.begin(), inputs.end(), IsUntraceable);
    const py::object run = runs_plain ? py::object((*program_).attr("run_plain")) : *program_;
    PyObject* const called = StayingAtThreadEnd([&] { return PyObject_CallObject(run.ptr(), args.ptr()); });
    py::object results = py::reinterpret_steal<py::object>(called);
    if (!results) {
      py::error_already_set error;
      (*program_).attr("leave_modes")(error.value());
      state.Restore();
      if (versions != Versions(inputs)) (*program_).attr("refuse_writes")(error.value());
      if (!error.matches(Imported("frametap._builtin_ops").attr("AssumptionFails"))) throw error;
      *changed = !compiles_;  // else it was found out while it was compiled for other sizes: nothing has run
      throw AssumptionFails(error.what());
    }
    if (state.IsSwitched()) state.Restore();
    std::vector<c10::IValue> out;
    out.reserve(types_.size());
    size_t i = 0;
    for (py::handle item : results) {  // the program has checked the number
      absl::StatusOr<c10::IValue> value = FromPython(item, types_[i].kind);
      if (!value.ok()) {
        (*program_).attr("refuse_result")(i, std::string(value.status().message()));
      }
      if (IsTensor(item.ptr()) && !IsPlainTensor(item.ptr()) && !IsOneOf(item, args)) {
        (*program_).attr("refuse_result")(i,
                                          absl::StrCat("a torch.Tensor expected, got ", Py_TYPE(item.ptr())->tp_name));
      }
      if (facts_follow_ && !runs_plain && types_[i].kind == Type::Kind::kTensor &&
          !IsAsRecorded(value->toTensor(), types_[i])) {
        Type want = types_[i];
        if (!sizes_follow_) std::fill(want.sizes.begin(), want.sizes.end(), -1);
        const std::string got = ToString(Type::Of(value->toTensor()));
        (*program_).attr("refuse_result")(i, absl::StrCat(ToString(want), " expected, got ", got));
      }
      out.push_back(*std::move(value));
      ++i;
    }
    return out;
  }

  bool runs_recorded_ops() const override { return false; }
  bool releases_gil() const override { return false; }
  int Traverse(Visit visit, void* arg) const override { return visit((*program_).ptr(), arg); }

 private:
  // Returns the version counters of the inputs, where no op of the graph writes to any.
  absl::InlinedVector<uint32_t, 16> Versions(const std::vector<c10::IValue>& inputs) const {
    absl::InlinedVector<uint32_t, 16> versions;
    versions.reserve(read_only_.size());
    for (const size_t i : read_only_) {
      const bool has_version =
          inputs[i].isTensor() && inputs[i].toTensor().defined() && !inputs[i].toTensor().is_inference();
      versions.push_back(has_version ? inputs[i].toTensor()._version() : 0);
    }
    return versions;
  }

  // Compilers see neither that a tensor counts as a Python number nor that its storage was resized to nothing.
  static bool IsUntraceable(const c10::IValue& value) {
    if (!value.isTensor() || !value.toTensor().defined()) return false;
    const at::Tensor& tensor = value.toTensor();
    return IsWrappedNumber(value) || (tensor.has_storage() && tensor.storage().nbytes() == 0 && tensor.numel() != 0);
  }

  static bool IsOneOf(py::handle object, const py::tuple& args) {
    return std::any_of(args.begin(), args.end(), [&](py::handle arg) { return arg.is(object); });
  }

  static bool IsPlainTensor(PyObject* object) {
    return IsExactTensor(object) && Py_TYPE(object) != ParameterClassOfTorch();
  }

  // Returns whether dtypes, ranks and sizes of all values follow from the inputs, so that each run gives the recorded
  // ones. Inputs of open sizes have the recorded dtypes and ranks.
  static bool FactsFollow(const Graph& graph, bool fixed) {
    for (const ValueId input : graph.inputs) {
      if (graph.value(input).type.is_number()) return false;
    }
    return std::none_of(graph.nodes.begin(), graph.nodes.end(), [fixed](const Node& node) {
      if (!node.op) return true;
      const OpFacts& facts = FactsOf(*node.op);
      const auto& parameters = node.op->schema().arguments();
      // `x.t_()`, `out=`: the value is another than it was recorded as.
      const bool reshapes = node.op->hasTag(at::Tag::inplace_view) ||
                            std::any_of(parameters.begin(), parameters.end(), [](const c10::Argument& parameter) {
                              return parameter.kwarg_only() && parameter.alias_info() != nullptr;
                            });
      return facts.data_dependent_size || facts.scalar_from_data || facts.scalar_from_metadata || reshapes ||
             (facts.size_dependent_rank && !fixed);
    });
  }

  bool IsAsRecorded(const at::Tensor& tensor, const Type& type) const {
    if (tensor.scalar_type() != type.dtype || tensor.device() != type.device) return false;
    if (tensor.layout() != c10::kStrided || tensor.is_nested()) return true;
    if (tensor.dim() != static_cast<int64_t>(type.sizes.size())) return false;
    for (size_t i = 0; sizes_follow_ && i < type.sizes.size(); ++i) {
      if (type.sizes[i] >= 0 && type.sizes[i] != tensor.size(static_cast<int64_t>(i))) return false;
    }
    return true;
  }

  Held program_;
  const bool compiles_;
  const NumberCheck numbers_;
  std::vector<size_t> read_only_;  // inputs that are tensors; none if the graph writes to an input
  const bool facts_follow_;        // each run gives results of the recorded dtypes and ranks
  const bool sizes_follow_;        // … and of the recorded sizes
  std::vector<Type> types_;        // of the outputs
};

class CallableBackend : public Backend, public HoldsObjects {
 public:
  CallableBackend(py::object function, std::string name, bool static_shapes, GraphView view)
      : function_(std::move(function)), name_(std::move(name)), static_shapes_(static_shapes), view_(std::move(view)) {}

  std::string name() const override { return name_; }

  Assumptions assumptions() const override {
    return Assumptions{.static_sizes = static_shapes_, .static_strides = static_shapes_};
  }

  absl::StatusOr<std::unique_ptr<Executable>> Compile(const Graph& graph) override { return Build(graph, nullptr); }

  absl::StatusOr<std::unique_ptr<Executable>> CompileFor(const Graph& graph, const Examples& examples) override {
    return Build(graph, &examples);
  }

  int Traverse(Visit visit, void* arg) const override { return visit((*function_).ptr(), arg); }

 private:
  absl::StatusOr<std::unique_ptr<Executable>> Build(const Graph& graph, const Examples* examples) {
    py::gil_scoped_acquire lock;
    const RoomForCalls room;
    try {
      py::object make = Imported("frametap._callable").attr("Program");
      py::list open, sizes;
      if (examples != nullptr) {
        for (const bool is_open : examples->open) open.append(is_open);
        for (const Examples::Size& size : examples->sizes)
          sizes.append(py::make_tuple(size.input, size.tensor, size.dim));
      }
      py::object program = make(view_(graph), *function_, name_, static_shapes_, open, sizes);
      if (examples != nullptr) {
        py::list values;
        for (const c10::IValue& value : examples->values) values.append(ToPython(value));
        program.attr("prepare")(values);
      }
      const bool is_fixed = static_shapes_ && examples != nullptr && examples->open.empty();
      const bool as_recorded =
          examples == nullptr || std::none_of(examples->values.begin(), examples->values.end(), IsWrappedNumber);
      return std::make_unique<CallableExecutable>(std::move(program), static_shapes_, is_fixed, as_recorded, graph);
    } catch (py::error_already_set& error) {
      if (!error.matches(PyExc_Exception)) throw;  // an interrupt, or an exit of the process
      RaiseAsBackendError(name_, error);
    }
  }

  Held function_;
  std::string name_;
  bool static_shapes_;
  GraphView view_;
};

}  // namespace

std::unique_ptr<Backend> MakeCallableBackend(py::object function, std::string name, bool static_shapes,
                                             GraphView view) {
  return std::make_unique<CallableBackend>(std::move(function), std::move(name), static_shapes, std::move(view));
}

}  // namespace frametap
