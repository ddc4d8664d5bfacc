#include "frame_eval/record/fast_paths/repeated_calls.h"

#include <ATen/SavedTensorHooks.h>
#include <ATen/record_function.h>

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "backends/reference/boxing.h"
#include "frame_eval/checks/self_checking.h"
#include "frame_eval/record/fast_paths/repeated_calls_attempt.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/semantics/foreign_operators.h"
#include "frame_eval/record/sites.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/well_known_objects.h"
#include "ir/graph/builtin_op.h"
#include "ir/graph/literal.h"
#include "ir/ops/op_rows.h"
#include "ir/passes/writes.h"

namespace frametap {
namespace {

bool is_on = true;
uint64_t repeated = 0;

// For one class: the number of calls that are kept. After as many misfits a call is not tried any more.
constexpr size_t kMostOfOneClass = 8;
constexpr uint32_t kMostMisfits = 4;

// Guards of its own describe its whole content. For the content that C code hides they describe the type only.
bool IsTold(PyObject* object) {
  if (PyIter_Check(object) || PyAnySet_Check(object)) return false;
  return IsTensor(object) || PyTuple_CheckExact(object) || PyList_CheckExact(object) || PyDict_CheckExact(object) ||
         PyODict_CheckExact(object) || PyFunction_Check(object) || PyObject_TypeCheck(object, Objects().module) ||
         IsOfPythonClass(object);
}

// Values as they are numbered by two recordings of the same call.
using InternTable = absl::flat_hash_map<ValueId, ValueId>;

bool AreEqual(ValueId a, ValueId b, InternTable* numbering) { return numbering->try_emplace(a, b).first->second == b; }

bool AreEqual(const Arg& a, const Arg& b, InternTable* numbering) {
  if (a.kind != b.kind || a.items.size() != b.items.size()) return false;
  if (a.kind == Arg::Kind::kValue && !AreEqual(a.value, b.value, numbering)) return false;
  for (size_t i = 0; i < a.items.size(); ++i) {
    if (!AreEqual(a.items[i], b.items[i], numbering)) return false;
  }
  return a.kind != Arg::Kind::kConst || SameConst(a.constant, b.constant);
}

}  // namespace

bool RepeatModuleCalls(bool on) { return std::exchange(is_on, on); }

uint64_t RepeatedModuleCalls() { return repeated; }

std::unique_ptr<RepeatedCalls> RepeatedCalls::For(Trace& trace) {
  // A number that has changed in one layer is left open there, and only there (numbers/N3).
  const bool may_be =
      is_on && !trace.entry.has_marks && !trace.entry.in_anomaly_mode && !trace.store.has_changing_numbers();
  return may_be ? std::make_unique<RepeatedCalls>(trace) : nullptr;
}

// ---- what a call is -------------------------------------------------------------------------------------------------

// P1, P2: of all that the trace did so far.
bool RepeatedCalls::MayRepeat() const {
  return !trace_.aten.pending && trace_.effects.pending.empty() && trace_.objects.mutated_sources.empty() &&
         trace_.objects.dict_writers.empty() && !trace_.thread.IsContextSet() && trace_.iteration.met.empty() &&
         trace_.iteration.outside_generators.empty() && trace_.lifetimes.ending.empty() &&
         trace_.lifetimes.watched.empty() && trace_.decisions.empty() && !trace_.variables.has_open_cells &&
         !trace_.aten.memory.writes_inputs() && at::SavedTensorDefaultHooks::get_tls_state().stack.empty();
}

template <class Numbers>
RepeatedCalls::FactsIn<Numbers> RepeatedCalls::FactsIn<Numbers>::Of(PyObject* object) {
  const at::Tensor& tensor = TensorOf(object);
  return {TensorGuard::BasicsOf(object), Numbers(tensor.sizes().begin(), tensor.sizes().end()),
          Numbers(tensor.strides().begin(), tensor.strides().end()), tensor.storage_offset()};
}
template RepeatedCalls::FactsNow RepeatedCalls::FactsNow::Of(PyObject* object);  // for the attempt

RepeatedCalls::ThreadStateSnapshot RepeatedCalls::ThreadStateNow() const {
  EagerState state = trace_.thread.state;
  state.autocast_cleared = trace_.aten.autocast_cleared;
  return {state, trace_.thread.backends, trace_.thread.autocast_nesting};
}

RepeatedCalls::TraceMark RepeatedCalls::Now() const {
  return {trace_.guards.mark(), trace_.aten.mark(), trace_.sites.places.mark(), reads_.size()};
}

// None for a call that is neither repeated nor kept.
std::optional<RepeatedCalls::CallSignature> RepeatedCalls::SignatureOf(const Event& e) const {
  const ObjectRecord* known = trace_.objects.Find(e.in[0]);
  if (known == nullptr || known->state != ObjectRecord::State::kSource || known->written || known->mutated)
    return std::nullopt;
  CallSignature signature;
  signature.said = trace_.guards.SaidOf(known->source);
  if (signature.said == GuardRecorder::Said::kMore) return std::nullopt;
  signature.type = Py_TYPE(e.in[0]);
  signature.module = known->source;
  signature.pinned = known->pinned;
  signature.names = Ref<>::New(e.kwnames);
  signature.thread_state = ThreadStateNow();
  signature.args.reserve(static_cast<size_t>(e.n) - 1);
  for (int i = 1; i < e.n; ++i) {
    PyObject* const object = e.in[i];
    Argument& arg = signature.args.emplace_back();
    arg.shadow = e.shadows[i];
    if (IsScalar(object)) {
      arg.scalar = Ref<>::New(object);
      continue;
    }
    if (!IsTensor(object) || !IsExactTensor(object) || HasOwnAttributes(object)) return std::nullopt;
    const KnownTensor* of_tensor = trace_.aten.tensors.Find(TensorOf(object));
    if (of_tensor == nullptr || of_tensor->resized || !IsStrided(object)) return std::nullopt;
    arg.impl = TensorOf(object).unsafeGetTensorImpl();
    arg.source = of_tensor->source;
    arg.unread = arg.existed() && trace_.guards.IsUnread(arg.source);
    arg.value = of_tensor->value;
    if (!arg.existed() && !arg.value.valid()) return std::nullopt;
    arg.facts = Facts::Of(object);
  }
  return signature;
}

bool RepeatedCalls::AreAlike(const MemoEntry& memo, const CallSignature& is) const {
  const CallSignature& was = memo.signature;
  if (was.said != is.said || was.pinned != is.pinned || was.args.size() != is.args.size() ||
      !(was.thread_state == is.thread_state)) {
    return false;
  }
  const auto count = [](const Ref<>& names) { return names ? PyTuple_GET_SIZE(names.get()) : 0; };
  if (count(was.names) != count(is.names)) return false;
  for (Py_ssize_t i = 0; i < count(was.names); ++i) {
    if (PyTuple_GET_ITEM(was.names.get(), i) != PyTuple_GET_ITEM(is.names.get(), i)) return false;
  }
  for (size_t i = 0; i < was.args.size(); ++i) {
    const Argument &a = was.args[i], &b = is.args[i];
    if (a.scalar.get() != b.scalar.get()) return false;
    if (a.shadow.kind != b.shadow.kind || a.shadow.id != b.shadow.id) return false;
    if (a.scalar) continue;
    // An argument that existed before was perhaps compared with others, or found elsewhere: then it must be the same
    // again. In place of one of which nothing but sizes was read, one that the trace has made is as good (P3).
    if (a.existed() && b.existed() ? a.impl != b.impl
                                   : b.existed() || (a.existed() && !(a.unread && trace_.numbers.sizes_open())))
      return false;
    Facts facts = b.facts;
    if (!memo.asks_grad) facts.basics.requires_grad = a.facts.basics.requires_grad;
    if (!(a.facts == facts)) return false;
    for (size_t j = 0; j < i; ++j) {
      if ((was.args[j].impl == a.impl) != (is.args[j].impl == b.impl)) return false;
    }
  }
  return true;
}

// ---- whether it may be repeated -------------------------------------------------------------------------------------

bool RepeatedCalls::IsGood(MemoEntry* memo) {
  if (memo->use != MemoEntry::Use::kUnknown) return memo->use == MemoEntry::Use::kGood;
  memo->use = MemoEntry::Use::kNone;
  std::optional<GuardRecorder::Part> part =
      trace_.guards.PartOf(memo->signature.module, memo->from.guards, memo->to.guards);
  if (!part) return false;
  // An object first seen there was seen only there, or is known by another path: then another module has to have it,
  // too.
  const auto is_in = [](const std::vector<SourceId>& sources, SourceId id) {
    return std::find(sources.begin(), sources.end(), id) != sources.end();
  };
  absl::flat_hash_map<PyObject*, SourceId> first;
  for (const SourceId id : part->sources) {
    PyObject* const object = trace_.guards.seen(id);
    MemoEntry::Meeting& meeting = memo->meetings.emplace_back();
    const bool is_shared = is_in(part->shared, id), is_fixed = is_in(part->fixed, id);
    if (IsScalar(object)) {
      if (is_shared || is_fixed) meeting.kind = MemoEntry::Meeting::Kind::kShared;
      continue;
    }
    const auto [met, is_new] = first.try_emplace(object, id);
    meeting = {is_new ? MemoEntry::Meeting::Kind::kNew : MemoEntry::Meeting::Kind::kAgain, met->second};
    if (!IsTold(object)) return false;
    const SourceId source = SourceOf(trace_, object);
    if (!source.valid() && !is_fixed) {
      if (trace_.objects.Find(object) != nullptr) return false;
      continue;  // a dict in which something was not found: the program has not seen it
    }
    if (!source.valid() || !part->Holds(source)) {
      if (!is_shared && !is_fixed) return false;
      meeting.kind = MemoEntry::Meeting::Kind::kShared;
      continue;
    }
    // Another identity is allowed only where it determines nothing about the content.
    const bool is_open =
        PyObject_TypeCheck(object, Objects().module) || PyDict_CheckExact(object) || PyODict_CheckExact(object);
    if (is_shared || (is_fixed && !is_open)) return false;
  }
  for (size_t i = memo->from.guards.sources; i < memo->to.guards.sources; ++i) {
    const SourceId id(static_cast<uint32_t>(i));
    PyObject* const object = trace_.guards.accessor(id) == Accessor::kPinned ? trace_.guards.seen(id) : nullptr;
    if (object != nullptr && (IsTensor(object) || PyObject_TypeCheck(object, Objects().module))) return false;
  }
  memo->part = std::move(*part);
  if (!HasGoodNodes(memo)) return false;
  // P3. Reads of other objects are guarded already.
  const auto was_made = [&](ValueId value) {
    return value.raw() >= memo->from.aten.values && value.raw() < memo->to.aten.values;
  };
  for (size_t i = memo->from.reads; i < memo->to.reads; ++i) {
    const Read& read = reads_[i];
    const bool is_inside = read.source.valid() ? memo->part.Holds(read.source) : was_made(read.value);
    if (is_inside || ArgumentOf(memo->signature, read) >= 0) memo->reads.push_back(read);
  }
  memo->use = MemoEntry::Use::kGood;
  return true;
}

// Which argument it is; -1: none.
int RepeatedCalls::GivenBack(const Event& e, PyObject* result) {
  const auto at = std::find(e.in + 1, e.in + e.n, result);
  return at == e.in + e.n ? -1 : static_cast<int>(at - e.in) - 1;
}

// Which argument was asked; -1: something else.
int RepeatedCalls::ArgumentOf(const CallSignature& signature, const Read& read) {
  for (size_t i = 0; i < signature.args.size(); ++i) {
    const Argument& arg = signature.args[i];
    if (arg.scalar) continue;
    if (read.source.valid() ? arg.source == read.source : arg.value == read.value) return static_cast<int>(i);
  }
  return -1;
}

bool RepeatedCalls::HasGoodNodes(MemoEntry* memo) const {
  const Graph& graph = trace_.aten.graph();
  const AtenRecorder::Mark &from = memo->from.aten, &to = memo->to.aten;
  if (from.constants != to.constants) return false;
  // The content of the module, and numbers outside of it: the same again.
  absl::flat_hash_set<ValueId> inputs;
  for (size_t i = from.tensors.inputs; i < to.tensors.inputs; ++i) {
    const auto& [source, value] = trace_.aten.tensors.inputs()[i];
    if (memo->part.Holds(source) || graph.value(value).type.is_number()) inputs.insert(value);
  }
  std::vector<size_t> last_users(to.values - from.values, to.nodes);
  const auto is_good = [&](ValueId use, size_t node) {
    const Value& value = graph.value(use);
    if (value.def.valid() && value.def.raw() >= from.nodes) {
      last_users[use.raw() - from.values] = node;
      return true;
    }
    if (inputs.contains(use) || (use.raw() < from.values && value.type.is_number())) return true;
    const auto& args = memo->signature.args;
    return std::any_of(args.begin(), args.end(), [&](const Argument& arg) { return !arg.scalar && arg.value == use; });
  };
  for (size_t i = from.nodes; i < to.nodes; ++i) {
    const Node& node = graph.nodes[i];
    if (!(graph.states[node.state.raw()] == memo->signature.thread_state.state)) return false;
    if (node.op) {
      const OpFacts& facts = *trace_.aten.op_facts.Of(*node.op).facts;
      if (!IsOfTorch(*node.op) || facts.no_result || facts.scalar_from_data || facts.scalar_from_metadata ||
          facts.data_dependent_size) {
        return false;
      }
      const bool may_write =
          facts.writes_inputs && (node.op->schema().is_mutable() || !OpRowOf(*node.op).Has(ops::kDropsOut));
      for (size_t k = 0; may_write && k < node.args.size(); ++k) {
        if (WritesTo(node, k)) return false;
      }
      memo->is_random = memo->is_random || facts.random;
      const auto is_on_cpu = [&](ValueId out) { return graph.value(out).type.device.is_cpu(); };
      if (facts.random && !std::all_of(node.outputs.begin(), node.outputs.end(), is_on_cpu)) return false;
    } else if (node.builtin_op == BuiltinOp::kSize) {
      return false;
    }
    const auto is_list = [&](ValueId out) { return graph.value(out).type.kind == Type::Kind::kTensorList; };
    if (std::count_if(node.outputs.begin(), node.outputs.end(), is_list) > 1) return false;
    for (const ValueId out : node.outputs) {
      const Type& type = graph.value(out).type;
      const bool is_number = node.is_scalar() && type.is_number();
      if (type.kind != Type::Kind::kTensor && type.kind != Type::Kind::kTensorList && !is_number) return false;
      if (out.raw() < from.values) return false;
      last_users[out.raw() - from.values] = i;  // of those that are not used
    }
    bool all_are_good = true;
    ForEachUse(node.args, [&](ValueId use) { all_are_good = all_are_good && is_good(use, i); });
    if (!all_are_good) return false;
  }
  const size_t result = memo->given_back >= 0 ? to.values : memo->result.raw() - from.values;
  for (size_t value = 0; value < last_users.size(); ++value) {
    if (value != result && last_users[value] < to.nodes) memo->last_uses.emplace_back(last_users[value], value);
  }
  std::sort(memo->last_uses.begin(), memo->last_uses.end());
  if (memo->given_back >= 0) return true;
  const NodeId made_by = graph.value(memo->result).def;
  return made_by.valid() && made_by.raw() >= from.nodes && made_by.raw() < to.nodes;
}

// ---- the calls of a recording ---------------------------------------------------------------------------------------

Ref<> RepeatedCalls::Call(const FrameNote& note, const Event& e) {
  while (!open_.empty() && open_.back().depth >= trace_.frames.inlined.size()) open_.pop_back();
  std::optional<CallSignature> signature = MayRepeat() ? SignatureOf(e) : std::nullopt;
  if (!signature) return Ref<>();
  std::optional<TraceSlice> expected;
  const bool is_checking = std::any_of(open_.begin(), open_.end(), [](const Open& call) { return call.expected; });
  const auto it = memos_.find(signature->type);
  if (it != memos_.end() && !is_checking && !at::hasCallbacks()) {
    for (size_t i = it->second.size(); i-- > 0 && !expected;) {
      MemoEntry& memo = *it->second[i];
      if (memo.misfits > kMostMisfits + memo.times || !AreAlike(memo, *signature) || !IsGood(&memo)) continue;
      Attempt attempt(*this, memo, *signature, e);
      Ref<> result = attempt.Result();
      const bool is_checked = result && SelfChecking() && memo.checks++ % 2 == 0;
      if (is_checked) expected = SliceSince(attempt.began(), result.get(), e);
      if (result && !is_checked) {
        ++memo.times;
        ++repeated;
        if (memo.asks_grad) NoteRequiresGrad();
        return result;
      }
      if (!result) ++memo.misfits;
      attempt.TakeBack();
    }
  }
  MemoEntry memo;
  memo.signature = std::move(*signature);
  memo.from = Now();
  open_.push_back({&note, trace_.frames.inlined.size(), std::move(memo), std::move(expected)});
  return Ref<>();
}

void RepeatedCalls::Returned(const FrameNote& note, const Event& e, PyObject* result) {
  while (!open_.empty() && open_.back().depth > trace_.frames.inlined.size()) open_.pop_back();
  if (open_.empty() || open_.back().note != &note) return;
  Open call = std::move(open_.back());
  open_.pop_back();
  MemoEntry& memo = call.memo;
  memo.to = Now();
  const CallSignature& signature = memo.signature;
  const bool is_plain =
      MayRepeat() && result != nullptr && IsTensor(result) && ThreadStateNow() == signature.thread_state;
  if (call.expected) {
    const std::string difference =
        is_plain ? Difference(*call.expected, SliceSince(memo.from, result, e)) : "it is no call to be repeated";
    if (!difference.empty() && !trace_.aten.pending) {
      fault_ = absl::StrCat("a call of ", signature.type->tp_name, " was repeated wrongly: ", difference);
    }
    return;
  }
  if (!is_plain || !IsExactTensor(result)) return;
  memo.given_back = GivenBack(e, result);
  const KnownTensor* known = trace_.aten.tensors.Find(TensorOf(result));
  if (known == nullptr || (memo.given_back < 0 && !known->value.valid())) return;
  memo.result = known->value;
  // The values of arguments that were used for the first time.
  for (size_t i = 0; i < memo.signature.args.size(); ++i) {
    Argument& arg = memo.signature.args[i];
    if (arg.unread) arg.unread = trace_.guards.OnlySizesRead(arg.source, memo.from.guards, memo.to.guards);
    if (arg.scalar || arg.value.valid()) continue;
    const KnownTensor* of_arg = trace_.aten.tensors.Find(TensorOf(e.in[i + 1]));
    if (of_arg != nullptr && of_arg->value.valid() && trace_.aten.tensors.IsInput(of_arg->value))
      arg.value = of_arg->value;
  }
  memo.site = PlaceOf(trace_, trace_.frames.inlined.size() - 1);
  auto& others = memos_[signature.type];
  if (others.size() == kMostOfOneClass) others.erase(others.begin());
  others.push_back(std::make_unique<MemoEntry>(std::move(memo)));
}

void RepeatedCalls::MeetSource(SourceId source, bool by_path) {
  for (const Open& call : open_) {
    const SourceId module = call.memo.signature.module;
    for (SourceId way = by_path ? module : trace_.guards.parent(module); way.valid(); way = trace_.guards.parent(way)) {
      if (way == source) return Invalidate();
    }
  }
}

void RepeatedCalls::DropFrom(size_t nodes) {
  for (auto& [type, calls] : memos_) {
    std::erase_if(calls, [nodes](const std::unique_ptr<MemoEntry>& memo) { return memo->to.aten.nodes > nodes; });
  }
}

void RepeatedCalls::Invalidate() {
  if (std::any_of(open_.begin(), open_.end(), [](const Open& call) { return call.expected.has_value(); })) {
    fault_ = "a call was repeated that cannot be";
  }
  open_.clear();
}

RepeatedCalls::TraceSlice RepeatedCalls::SliceSince(const TraceMark& moment, PyObject* result, const Event& e) const {
  TraceSlice said;
  said.guards = trace_.guards.SaidSince(moment.guards);
  said.values = moment.aten.values;
  const Graph& graph = trace_.aten.graph();
  for (size_t i = moment.aten.nodes; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    const Type::Kind kind = node.is_scalar() ? graph.value(node.outputs[0]).type.kind : Type::Kind::kTensor;
    if (kind == Type::Kind::kInt || kind == Type::Kind::kFloat) continue;  // stands before its use, somewhere
    said.made.push_back(node);
    said.places.push_back(trace_.aten.places()[i]);
  }
  said.given_back = GivenBack(e, result);
  if (const auto* known = trace_.aten.tensors.Find(TensorOf(result)); known != nullptr) said.result = known->value;
  return said;
}

std::string RepeatedCalls::Difference(const TraceSlice& expected, const TraceSlice& got) const {
  if (expected.guards != got.guards) {
    const auto [a, b] =
        std::mismatch(expected.guards.begin(), expected.guards.end(), got.guards.begin(), got.guards.end());
    std::string words = absl::StrCat("guard ", a - expected.guards.begin(), " of ", expected.guards.size(), " (",
                                     got.guards.size(), ")");
    for (const auto& [one, end] : {std::pair(a, expected.guards.end()), std::pair(b, got.guards.end())}) {
      if (one == end) continue;
      absl::StrAppend(&words, ", ", (*one)[0], ":", (*one)[1], ":", (*one)[2], ":", (*one)[3]);
    }
    return words;
  }
  if (expected.made.size() != got.made.size()) {
    return absl::StrCat(expected.made.size(), " nodes, not ", got.made.size());
  }
  InternTable numbering;
  for (uint32_t i = 0; i < expected.values; ++i) numbering[ValueId(i)] = ValueId(i);
  for (size_t i = 0; i < got.made.size(); ++i) {
    const Node &a = expected.made[i], &b = got.made[i];
    bool same = a.op_name() == b.op_name() && a.args.size() == b.args.size() && a.outputs.size() == b.outputs.size() &&
                a.state == b.state && trace_.sites.places.AreAlike(expected.places[i], got.places[i]);
    for (size_t k = 0; same && k < a.args.size(); ++k) same = AreEqual(a.args[k], b.args[k], &numbering);
    for (size_t k = 0; same && k < a.outputs.size(); ++k) same = AreEqual(a.outputs[k], b.outputs[k], &numbering);
    if (!same) return absl::StrCat("node ", i, ", ", b.op_name());
  }
  const bool same_value = expected.given_back >= 0 || AreEqual(expected.result, got.result, &numbering);
  if (expected.given_back != got.given_back || !same_value) return "another result";
  return "";
}

}  // namespace frametap
