#include "frame_eval/record/trace/aten_recorder.h"

#include <ATen/SavedTensorHooks.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "frame_eval/checks/fault_observer.h"
#include "frame_eval/record/trace/attention_nodes.h"
#include "frame_eval/record/trace/size_dependence.h"
#include "frame_eval/state/aten_pause.h"
#include "ir/dcheck.h"
#include "ir/graph/eager_state.h"
#include "ir/ops/memory_overlap.h"
#include "ir/ops/op_rows.h"
#include "ir/passes/writes.h"

namespace frametap {

namespace {

thread_local constinit AtenRecorder* tls_recorder = nullptr;
// Frames of kernels in Python that a recording follows. Plain Python counts no ops below them.
thread_local constinit int kernel_frames = 0;
thread_local constinit bool saw_every_op = false;  // before the recording

bool HasOut(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  return std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& one) { return one.is_out(); });
}

bool IsAmong(c10::ArrayRef<c10::IValue> values, bool (*is_meant)(const at::Tensor&)) {
  return std::any_of(values.begin(), values.end(), [is_meant](const c10::IValue& value) {
    if (value.isTensor()) return value.toTensor().defined() && is_meant(value.toTensor());
    if (!value.isTensorList()) return false;
    const auto list = value.toTensorVector();
    return std::any_of(list.begin(), list.end(),
                       [is_meant](const at::Tensor& t) { return t.defined() && is_meant(t); });
  });
}

// Compilers cannot trace these.
std::optional<Break> UntraceableAmong(c10::ArrayRef<c10::IValue> values) {
  const char* what = nullptr;
  if (IsAmong(values, [](const at::Tensor& t) { return c10::isQIntType(t.scalar_type()); })) {
    what = "a quantized tensor, which compilers cannot trace";
  } else if (IsAmong(values, [](const at::Tensor& t) { return t.layout() != c10::kStrided && !t.is_nested(); })) {
    what = "a sparse tensor, which compilers cannot trace";
  }
  return what != nullptr ? std::optional(Break{Reason::unknown_operation, what}) : std::nullopt;
}

// Whether two of the tensors that an op writes may share memory. The op writes to them in turn, and reads what it has just
// written. A compiler computes all results first, so that the last one is all that is left.
bool WritesMemoryTwice(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> values) {
  std::vector<at::Tensor> written;
  for (size_t i = 0; i < values.size(); ++i) {
    const c10::AliasInfo* const alias = schema.arguments()[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    if (values[i].isTensor()) written.push_back(values[i].toTensor());
    if (!values[i].isTensorList()) continue;
    for (const at::Tensor& tensor : values[i].toTensorVector()) written.push_back(tensor);
  }
  return MayOverlap(written);
}

void Fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard exclude(aten::kKey);
  const bool is_outermost = aten::depth == 0;
  const bool is_of_program = is_outermost && kernel_frames == 0;
  if (is_of_program && tls_recorder != nullptr) tls_recorder->Meet();
  if (fault_observer != nullptr) [[unlikely]]
    fault_observer->BeforeOp(op, is_of_program);
  if (tls_recorder == nullptr || !is_outermost) {
    AtenPause below;
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, aten::kKey), stack);
    return;
  }
  tls_recorder->Record(op, keys, stack);
}

// The Python number in a wrapped number. It is read from memory where the memory is plain. item() is an op, and an
// observer of ops (the profiler, RecordFunction) would see it in a recorded call alone.
c10::Scalar NumberIn(const at::Tensor& wrapped) {
  const bool plain = wrapped.is_cpu() && wrapped.has_storage() && wrapped.storage().data() != nullptr &&
                     !wrapped.key_set().has(c10::DispatchKey::Python) && !wrapped.is_neg();
  if (plain && wrapped.scalar_type() == c10::ScalarType::Double) return *wrapped.const_data_ptr<double>();
  if (plain && wrapped.scalar_type() == c10::ScalarType::Long) return *wrapped.const_data_ptr<int64_t>();
  if (plain && wrapped.scalar_type() == c10::ScalarType::Bool) return *wrapped.const_data_ptr<bool>();
  at::NoGradGuard no_grad;
  AtenPause below;
  return wrapped.item();
}

}  // namespace

const char* InstallFallback() {
  static const char* problem = []() -> const char* {
    try {
      // Never given back: the registration lives as long as the process.
      static auto* registration = new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().registerFallback(
          aten::kKey, c10::KernelFunction::makeFromBoxedFunction<&Fallback>(), "frametap"));
      (void)registration;
      return "";
    } catch (const c10::Error&) {
      return "frametap cannot record: another extension (torchdistx?) holds torch's DeferredInit dispatch key";
    }
  }();
  return problem;
}

AtenRecorder::AtenRecorder() {
  graph_.states[0] = CurrentEagerState();
  // Sized for a small model: vectors that grow by themselves are moved several times before they are as large.
  constexpr size_t kUsual = 64;
  graph_.values.reserve(2 * kUsual);
  graph_.nodes.reserve(kUsual / 2);
  tensors.Reserve(kUsual);
  memory.Reserve(kUsual);
}
AtenRecorder::~AtenRecorder() {
  Stop();
  for (RunningOp* op = running_; op != nullptr; op = op->outer) op->recorder = nullptr;
}

StateId AtenRecorder::StateNow() {
  EagerState state = CurrentEagerState();
  state.autocast_cleared = autocast_cleared;
  return graph_.AddState(state);
}

void AtenRecorder::Start() {
  if (is_on_) return;
  is_on_ = true;
  tls_recorder = this;
  saw_every_op = c10::impl::tls_is_dispatch_key_included(aten::kKey);
  aten::SeeEveryOp(true);
}

void AtenRecorder::Stop() {
  if (!is_on_) return;
  is_on_ = false;
  tls_recorder = nullptr;
  aten::SeeEveryOp(saw_every_op);
}

void SeeOpsOfKernel(bool on) {
  kernel_frames += on ? 1 : -1;
  c10::impl::tls_set_dispatch_key_excluded(aten::kKey, !on);
}

bool IsInsideOp() { return aten::depth > 0; }

// Array inputs are the opaque ones (ArrayValue of array_nodes.cc).
static bool IsArrayInput(const Graph& graph, ValueId input) {
  return graph.value(input).type.kind == Type::Kind::kOpaque;
}

// A run could not take such a write back: nothing says which memory the array of the run has.
static Break WritesToArray() { return {Reason::numpy_code, "an op that writes to the memory of an array"}; }

static bool MayWriteToArray(const Graph& graph, const Node& node) {
  const auto is_array = [&graph](ValueId input) { return IsArrayInput(graph, input); };
  if (std::none_of(graph.inputs.begin(), graph.inputs.end(), is_array)) return false;
  bool found = false;
  std::vector<bool> met;
  ForEachWritten(
      node, [&](ValueId value) { NoteWritten(graph, value, &met, [&](ValueId input) { found |= is_array(input); }); });
  return found;
}

bool AtenRecorder::AddSource(const at::Tensor& tensor, SourceId source) {
  memory.AddSource(tensor);
  return tensors.AddSource(tensor, source);
}

void AtenRecorder::NoteWritesTo(const std::vector<ValueId>& values) {
  for (const ValueId value : values) {
    memory.NoteValue(graph_, value, [this](ValueId input) { return tensors.IsInput(input); });
  }
}

ValueId AtenRecorder::AddScalarNode(BuiltinOp op, std::vector<Arg> args, Type type) {
  Node node;
  node.builtin_op = op;
  node.args = std::move(args);
  return AddMade(std::move(node), std::move(type), place());
}

ValueId AtenRecorder::AddOpNode(const char* name, const char* overload, std::vector<Arg> args, Type type) {
  Node node;
  node.op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
  node.args = std::move(args);
  const std::vector<c10::Argument>& parameters = node.op->schema().arguments();
  while (node.args.size() < parameters.size()) {
    node.args.push_back(Arg::Const(parameters[node.args.size()].default_value().value_or(c10::IValue())));
  }
  return AddMade(std::move(node), std::move(type), place());
}

// A node that was made here, and not by the fallback.
ValueId AtenRecorder::AddMade(Node node, Type type, PlaceId at) {
  node.state = StateNow();
  ValueId out = graph_.NewValue("", std::move(type), NodeId(graph_.nodes.size()));
  node.outputs.push_back(out);
  const bool rank_by_size = node.op && op_facts.Of(*node.op).facts->size_dependent_rank;
  Add(std::move(node), at, rank_by_size);
  return out;
}

// `rank_by_size`: ranks of results may follow from sizes of arguments.
void AtenRecorder::Add(Node node, PlaceId place, bool rank_by_size) {
  ranks.Add(node, rank_by_size);
  element_numbers.Add(graph_, node);
  graph_.AddNode(std::move(node));
  places_.push_back(place);
}

void AtenRecorder::Rewind(const Mark& mark) {
  FT_DCHECK(places_.size() == graph_.nodes.size());
  FT_DCHECK(mark.nodes <= graph_.nodes.size() && mark.values <= graph_.values.size());
  tensors.Rewind(mark.tensors);
  memory.Rewind(mark.values);
  resized.Rewind(mark.values, mark.nodes);
  ranks.Rewind(mark.values);
  element_numbers.Rewind(mark.values);
  graph_.nodes.resize(mark.nodes);
  graph_.values.resize(mark.values);
  graph_.constants.resize(mark.constants);
  ops_met_ = mark.ops_met;
  places_.resize(mark.nodes);
}

void AtenRecorder::DropNodes(Mark since) {
  since.ops_met = ops_met_;
  Rewind(since);
}

void AtenRecorder::DropBeforeLast(NodeId first) {
  FT_DCHECK(first.raw() < graph_.nodes.size());
  for (size_t i = first.raw(); i < graph_.nodes.size(); ++i) {
    const bool stays = i + 1 == graph_.nodes.size();
    for (const ValueId output : graph_.nodes[i].outputs) graph_.value(output).def = stays ? first : NodeId();
  }
  std::swap(graph_.nodes[first.raw()], graph_.nodes.back());
  std::swap(places_[first.raw()], places_.back());
  graph_.nodes.resize(first.raw() + 1);
  places_.resize(first.raw() + 1);
}

ValueId AtenRecorder::NewOutput(const at::Tensor& tensor, NodeId node) {
  if (!tensor.defined()) return graph_.NewValue("", Type(), node);
  if (tensor.is_nested()) pending = Break{Reason::nested_tensor, ""};
  ValueId id = graph_.NewValue("", Type::Of(tensor), node);
  tensors.Bind(tensor, id);
  return id;
}

// An op that may change metadata has run. Where it gives the argument back, the result says what the argument is from now
// on. Else nothing does: the value that stands for it has unknown sizes. May set `pending`.
void AtenRecorder::SeeMetadata(const MetadataBefore& written, const torch::jit::Stack& results, size_t returns,
                               NodeId node) {
  KnownTensor* const known = tensors.Find(written.tensor);
  if (known == nullptr) return;
  bool is_returned = false;
  for (const c10::IValue& value : torch::jit::last(results, returns)) {
    is_returned = is_returned || (value.isTensor() && value.toTensor().is_same(written.tensor));
  }
  // The guards on a tensor that existed before describe it at the entry.
  if (!written.IsAsItWas() && (known->source.valid() || !is_returned)) {
    pending = Break{Reason::tensor_metadata_change, ""};
    return;
  }
  known->resized = true;
  known->metadata_read = known->strides_read = false;
  if (is_returned) return;
  const ValueId value = *tensors.ValueOf(written.tensor);
  resized.AddResizer(value, node);
  ranks.Insert(value);
}

// May set `pending`.
Arg AtenRecorder::ArgOf(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) return Arg::Const(c10::IValue());
    if (std::optional<ValueId> id = tensors.ValueOf(tensor)) return Arg::Of(*id);
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      // A Python number on its way to a Tensor parameter. An executor makes the same wrapped number of it again.
      return ArgOf(c10::IValue(NumberIn(tensor)));
    }
    if (expect_constant) {
      const size_t count = graph_.constants.size();
      ValueId id = graph_.AddConstant(count == 0 ? "c" : absl::StrCat("c.", count), tensor);
      tensors.Bind(tensor, id);
      return Arg::Of(id);
    }
    const KnownTensor* const known = tensors.Find(tensor);
    const bool has_data_set = known != nullptr && known->data_set;
    if (!pending && has_data_set) pending = Break{Reason::tensor_attribute, "data"};
    if (!pending) pending = Break{Reason::tensor_from_nowhere, ""};
    return Arg::Const(c10::IValue());
  }
  if (value.isTensorList() || value.isOptionalTensorList() ||
      (value.isList() && !value.isIntList() && !value.isDoubleList() && !value.isBoolList() && !value.isSymIntList())) {
    std::vector<Arg> items;
    bool any_value = false;
    for (const c10::IValue& item : value.toListRef()) {
      items.push_back(ArgOf(item));
      any_value = any_value || items.back().kind == Arg::Kind::kValue;
    }
    if (any_value) return Arg::List(std::move(items));
    return Arg::Const(value);
  }
  if (value.isSymIntList()) {
    std::vector<int64_t> sizes;
    for (const c10::IValue& item : value.toListRef()) sizes.push_back(item.toSymInt().guard_int(__FILE__, __LINE__));
    return Arg::Const(c10::IValue(sizes));
  }
  if (value.isUnsigned() && !value.isInt() && !pending) {
    pending = Break{Reason::unknown_operation, "an int of 64 bits without a sign"};  // graphs have no type for it
  }
  if (value.isSymInt()) return Arg::Const(c10::IValue(value.toSymInt().guard_int(__FILE__, __LINE__)));
  if (value.isSymFloat()) return Arg::Const(c10::IValue(value.toSymFloat().guard_float(__FILE__, __LINE__)));
  if (value.isSymBool()) return Arg::Const(c10::IValue(value.toSymBool().guard_bool(__FILE__, __LINE__)));
  if (value.isGenerator() && value.toGenerator().defined() && !pending) {
    // A generator object cannot be found again by a source yet.
    pending = Break{Reason::unknown_operation, "a torch.Generator argument"};
  }
  return Arg::Const(value);
}

void AtenRecorder::MayRefuse(const c10::OperatorHandle& op) {
  if (!refuses || !pending) return;
  has_refused = true;
  TORCH_CHECK(false, op.operator_name(), " is not part of a graph");  // who called the function gets another error
}

void AtenRecorder::Record(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  c10::DispatchKeySet rest = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, aten::kKey);
  if (admits_none) [[unlikely]] {
    if (!pending) pending = Break{Reason::unknown_operation, op.operator_name().name};
    TORCH_CHECK(false, op.operator_name(), " is not part of a graph");
  }
  MayRefuse(op);
  if (pending) {
    AtenPause below;
    op.redispatchBoxed(rest, stack);
    return;
  }
  if (!IsOfTorch(op) && OpRowOf(op).Has(ops::kObserved)) {  // a guard: no observer is on
    AtenPause below;
    op.redispatchBoxed(rest, stack);
    return;
  }
  const c10::FunctionSchema& schema = op.schema();
  const OpFacts& facts = *op_facts.Of(op).facts;
  size_t arg_count = schema.arguments().size();
  if (decided != nullptr && facts.scalar_from_data && arg_count == 1 && torch::jit::last(*stack, 1)[0].isTensor() &&
      torch::jit::last(*stack, 1)[0].toTensor().unsafeGetTensorImpl() == decided) {
    AtenPause below;
    op.redispatchBoxed(rest, stack);
    return;
  }
  Node node;
  node.op = op;
  node.args.reserve(arg_count);
  for (const c10::IValue& value : torch::jit::last(*stack, arg_count)) node.args.push_back(ArgOf(value));
  if (!pending && IsAttentionSwitched(*this)) [[unlikely]]
    pending = KeepAttention(&node);
  const bool is_number = expect_number && OpRowOf(op).Has(ops::kGivesElement);
  if (facts.scalar_from_data && !is_number && !pending) {
    pending = Break{Reason::value_of_tensor, op.operator_name().name};
  }
  if (refuses && facts.writes_inputs && !pending && MayWriteToArray(graph_, node)) pending = WritesToArray();
  MayRefuse(op);
  node.state = StateNow();
  const PlaceId at = place();

  if (predicts_sizes && !pending && !CanPredictSizes(graph_, node, facts)) {
    const std::string name = c10::toString(op.operator_name());
    pending = facts.asks_for_elements
                  ? Break{Reason::unknown_operation, absl::StrCat(name, ", which compilers cannot trace")}
                  : Break{Reason::data_dependent_size, name};
  }
  if (predicts_sizes && !pending) pending = UntraceableAmong(torch::jit::last(*stack, arg_count));
  if (predicts_sizes && !pending && facts.writes_inputs &&
      WritesMemoryTwice(schema, torch::jit::last(*stack, arg_count))) {
    pending = Break{Reason::unknown_operation, absl::StrCat(op.operator_name().name, " that writes to memory twice")};
  }
  // AOTAutograd writes `torch.ops.aten.random.from` into the code that it makes, which Python cannot parse.
  if (predicts_sizes && !pending && op.operator_name().overload_name == "from") {
    pending = Break{Reason::unknown_operation, "an op whose name compilers cannot write into Python code"};
  }

  std::vector<MetadataBefore> written;
  std::vector<at::Tensor> all_written;
  auto will_write = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    all_written.push_back(tensor);
    const bool existed = !tensor.has_storage() || memory.IsSource(tensor.storage().unsafeGetStorageImpl());
    if (before_write && existed) {
      AtenPause below;
      before_write(tensor);
    }
    if (const KnownTensor* known = tensors.Find(tensor);
        known != nullptr && (facts.changes_metadata || known->source.valid())) {
      written.emplace_back(tensor);
    }
  };
  if (facts.writes_inputs) {
    for (size_t i = 0; i < arg_count; ++i) {
      if (!WritesTo(node, i)) continue;
      const c10::IValue& value = torch::jit::peek(*stack, i, arg_count);
      if (value.isTensor()) will_write(value.toTensor());
      if (!value.isTensorList()) continue;
      for (const at::Tensor& tensor : value.toTensorVector()) will_write(tensor);
    }
  }
  bool is_followed = false;
  Mark since;
  {
    AtenPause below;
    RunningOp running(this, op);
    op.redispatchBoxed(rest, stack);
    if (running.recorder == nullptr) return;  // a frame of the kernel has ended the recording
    is_followed = running.is_followed;
    since = running.since;
  }
  if (pending) return;
  if (predicts_sizes) pending = UntraceableAmong(torch::jit::last(*stack, schema.returns().size()));
  if (pending) return;
  // A compiler that traces an op with `out=` does not see that the op has resized it (torch 2.13, FunctionalTensor).
  const bool may_change = facts.changes_metadata && !(predicts_sizes && HasOut(schema));
  for (const MetadataBefore& w : written) {
    if (!w.IsAsItWas() && !may_change) {
      pending = Break{Reason::tensor_metadata_change, ""};
    } else if (facts.changes_metadata) {
      SeeMetadata(w, *stack, schema.returns().size(), NodeId(graph_.nodes.size()));
    }
    if (!pending) continue;
    pending->detail = op.operator_name().name;
    for (const MetadataBefore& one : written) {
      if (one.storage && !one.IsAsItWas()) resized.KeepBefore(one);
    }
    return;
  }
  if (facts.writes_inputs) {
    memory.NoteTensors(all_written);
    ForEachWritten(node, [this](ValueId value) {
      memory.NoteValue(graph_, value, [this](ValueId input) {
        if (IsArrayInput(graph_, input)) pending = WritesToArray();
        return tensors.IsInput(input) && !IsArrayInput(graph_, input);
      });
    });
  }
  if (pending) return;
  if (facts.random) uses_random_ = true;
  if (!is_followed) {
    AddOp(std::move(node), *stack, at, facts.size_dependent_rank);
  } else if (followed_) {
    pending = Break{Reason::python_kernel, c10::toString(op.operator_name())};  // one call, and several ops of its kind
  } else {
    const auto results = torch::jit::last(*stack, schema.returns().size());
    followed_ = FollowedOp{std::move(node), results.vec(), at, since, graph_.nodes.size()};
  }
}

void AtenRecorder::RunAgain(NodeId like, std::vector<Arg> args, torch::jit::Stack* stack, PlaceId at) {
  Node node;
  node.op = graph_.node(like).op;
  node.state = graph_.node(like).state;
  node.args = std::move(args);
  {
    c10::impl::ExcludeDispatchKeyGuard exclude(aten::kKey);
    AtenPause below;
    Meet();
    if (fault_observer != nullptr) [[unlikely]]
      fault_observer->BeforeOp(*node.op, true);
    node.op->callBoxed(stack);
  }
  const OpFacts& facts = *op_facts.Of(*node.op).facts;
  if (facts.random) uses_random_ = true;
  AddOp(std::move(node), *stack, at, facts.size_dependent_rank);
}

ValueId AtenRecorder::AddAgain(NodeId like, std::vector<Arg> args, PlaceId at) {
  Node node;
  node.builtin_op = graph_.node(like).builtin_op;
  node.args = std::move(args);
  return AddMade(std::move(node), graph_.value(graph_.node(like).outputs[0]).type, at);
}

// Its results are on the stack.
NodeId AtenRecorder::AddOp(Node node, const torch::jit::Stack& stack, PlaceId at, bool rank_by_size) {
  const size_t return_count = node.op->schema().returns().size();
  NodeId id(graph_.nodes.size());
  for (const c10::IValue& value : torch::jit::last(stack, return_count)) {
    if (value.isTensor()) {
      node.outputs.push_back(NewOutput(value.toTensor(), id));
    } else if (value.isTensorList()) {
      // A list result is one value in the schema; its elements are known as items of it.
      Type type;
      type.kind = Type::Kind::kTensorList;
      ValueId list = graph_.NewValue("", type, id);
      node.outputs.push_back(list);
    } else {
      Type type;
      type.kind = value.isInt()      ? Type::Kind::kInt
                  : value.isDouble() ? Type::Kind::kFloat
                  : value.isBool()   ? Type::Kind::kBool
                                     : Type::Kind::kOpaque;
      node.outputs.push_back(graph_.NewValue("", type, id));
    }
  }
  Add(std::move(node), at, rank_by_size);
  // Elements of list results: one `list item` node each, so that every tensor has a value of its own.
  for (size_t i = 0; i < return_count; ++i) {
    const c10::IValue& value = torch::jit::peek(stack, i, return_count);
    if (!value.isTensorList()) continue;
    ValueId list = graph_.node(id).outputs[i];
    int64_t index = 0;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      Node item;
      item.builtin_op = BuiltinOp::kListItem;
      item.args = {Arg::Of(list), Arg::Const(c10::IValue(index++))};
      item.state = graph_.node(id).state;
      NodeId item_id(graph_.nodes.size());
      item.outputs.push_back(NewOutput(tensor, item_id));
      Add(std::move(item), at);
    }
  }
  return id;
}

}  // namespace frametap
