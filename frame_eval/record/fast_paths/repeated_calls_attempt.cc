#include "frame_eval/record/fast_paths/repeated_calls_attempt.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "backends/reference/boxing.h"
#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/numbers/sizes.h"
#include "frame_eval/record/sites.h"
#include "frame_eval/record/trace.h"
#include "frame_eval/state/random_state.h"
#include "guards/objects/kept_warnings.h"
#include "guards/objects/object_end.h"
#include "guards/objects/thread_end.h"
#include "ir/graph/builtin_op.h"
#include "ir/graph/literal.h"
#include "ir/graph/walk.h"

namespace frametap {

namespace {

bool IsOnlyThread() {
  PyThreadState* const first = PyInterpreterState_ThreadHead(PyInterpreterState_Get());
  return first != nullptr && PyThreadState_Next(first) == nullptr;
}

bool AreSameOperands(const Arg& a, const Arg& b) {
  return a.kind == b.kind && (a.kind == Arg::Kind::kValue ? a.value == b.value : SameConst(a.constant, b.constant));
}

}  // namespace

RepeatedCalls::Attempt::Attempt(RepeatedCalls& repeats, const MemoEntry& memo, const CallSignature& signature,
                                const Event& e)
    : all_(repeats),
      trace_(repeats.trace_),
      memo_(memo),
      setting_(signature),
      e_(e),
      began_(repeats.Now()),
      observed_(fault_observer != nullptr ? fault_observer->BeginAttempt() : nullptr),
      ranks_(trace_.aten.ranks.unsettled()),
      repetition_(memo.part, signature.module) {}

Ref<> RepeatedCalls::Attempt::Result() {
  try {
    Ref<> result = Guards() && Nodes() && Reads() ? Give() : Ref<>();
    if (PyErr_Occurred() == nullptr && !trace_.aten.pending) return result;
  } catch (const Misfit&) {
  } catch (const Break&) {
  } catch (const std::exception&) {  // interpreted, it raises where it should
  }
  return Ref<>();
}

void RepeatedCalls::Attempt::TakeBack() {
  if (observed_ != nullptr) [[unlikely]]
    observed_->TakenBack();
  if (random_state_.defined()) SetRandomState(random_state_);
  PyErr_Clear();
  made_.clear();
  stack_.clear();
  items_.clear();
  trace_.guards.Rewind(began_.guards);
  trace_.aten.Rewind(began_.aten);
  trace_.aten.ranks.Restore(std::move(ranks_));
  trace_.aten.pending.reset();
  for (c10::TensorImpl* tensor : added_) trace_.aten.tensors.Forget(tensor);
  trace_.numbers.Forget(began_.guards.sources, began_.aten.values);
  all_.reads_.resize(began_.reads);
}

bool RepeatedCalls::Attempt::Guards() {
  std::vector<PyObject*> met;
  met.reserve(memo_.meetings.size());
  added_.reserve(memo_.meetings.size());
  auto meeting = memo_.meetings.begin();
  const auto fits = [&](SourceId was, SourceId is) {
    PyObject *const object = trace_.guards.seen(was), *const other = trace_.guards.seen(is);
    const auto [kind, first] = *meeting++;
    switch (kind) {
      case MemoEntry::Meeting::Kind::kScalar:
        return true;
      case MemoEntry::Meeting::Kind::kShared:
        return other == object;
      case MemoEntry::Meeting::Kind::kAgain:
        return other == trace_.guards.seen(repetition_.IsNow(first));
      case MemoEntry::Meeting::Kind::kNew:
        break;
    }
    if (EndRunsCode(other)) return false;
    met.push_back(other);
    if (!IsTensor(object)) return trace_.objects.Find(other) == nullptr;
    const bool is_alike = IsStrided(object) && IsStrided(other) && FactsNow::Of(object) == FactsNow::Of(other);
    if (!is_alike || HasOwnAttributes(other) || !trace_.aten.AddSource(TensorOf(other), is)) return false;
    added_.push_back(TensorOf(other).unsafeGetTensorImpl());
    return true;
  };
  if (!trace_.guards.Repeat(&repetition_, fits)) return false;
  std::sort(met.begin(), met.end());
  if (std::adjacent_find(met.begin(), met.end()) != met.end()) return false;
  for (const SourceId was : memo_.part.sources)
    trace_.objects.SetPinned(repetition_.IsNow(was), trace_.objects.pinned[was.raw()]);
  return true;
}

bool RepeatedCalls::Attempt::Nodes() {
  const size_t first = memo_.from.aten.nodes, last = memo_.to.aten.nodes;
  made_.resize(memo_.to.aten.values - memo_.from.aten.values);
  if (first == last) return true;
  if (memo_.is_random && !IsOnlyThread()) return false;
  if (memo_.is_random) random_state_ = RandomState();
  for (size_t i = memo_.from.aten.tensors.inputs; i < memo_.to.aten.tensors.inputs; ++i) {
    const auto [source, value] = trace_.aten.tensors.inputs()[i];
    PyObject* const seen = memo_.part.Holds(source) ? trace_.guards.seen(repetition_.IsNow(source)) : nullptr;
    if (seen != nullptr && IsTensor(seen)) Slot(value).tensor = TensorOf(seen);
  }
  Places::Repetition places(memo_.site, PlaceOf(trace_, trace_.frames.inlined.size() - 1), memo_.from.places,
                            memo_.to.places);
  auto last_use = memo_.last_uses.begin();
  stack_.reserve(8);  // arguments of most ops
  KeptWarnings warnings;
  const c10::WarningUtils::WarningHandlerGuard keep(&warnings);
  for (size_t i = first; i < last; ++i) {
    const PlaceId at = trace_.sites.places.Repeat(trace_.aten.places()[i], &places,
                                                  [&](SourceId was) { return repetition_.IsNow(was); });
    if (at == kNowhere) return false;
    const size_t next = trace_.aten.graph().nodes.size();
    if (trace_.aten.graph().nodes[i].op) {
      if (!Op(i, at)) return false;
      const size_t count = trace_.aten.graph().nodes.size() - next;
      if (count > last - i) return false;
      for (size_t k = 0; k < count; ++k) {
        if (!Bind(i + k, next + k)) return false;
      }
      i += count - 1;  // items of a list came with it
    } else {
      if (!Scalar(i, at)) return false;
    }
    stack_.clear();
    for (; last_use != memo_.last_uses.end() && last_use->first <= i; ++last_use) {
      made_[last_use->second].tensor = at::Tensor();
    }
  }
  return warnings.empty();
}

// The present counterpart of a value of the call; `*value`, if it is needed.
Arg RepeatedCalls::Attempt::Now(const Arg& was, c10::IValue* value, const c10::Type& type) {
  const Boxing boxing = BoxingFor(type);
  switch (was.kind) {
    case Arg::Kind::kConst:
      *value = Box(was.constant, boxing);
      return was;
    case Arg::Kind::kValue:
      break;
    case Arg::Kind::kList: {
      const c10::TypePtr element = ElementType(type);
      if (element == nullptr) throw Misfit();
      c10::impl::GenericList list(element);
      std::vector<Arg> items;
      for (const Arg& item : was.items) {
        c10::IValue part;
        items.push_back(Now(item, &part, *element));
        list.push_back(std::move(part));
      }
      *value = std::move(list);
      return Arg::List(std::move(items));
    }
  }
  const Graph& graph = trace_.aten.graph();
  if (graph.value(was.value).type.is_number()) {
    const ValueId now = NumberNow(was.value);
    c10::IValue number = NumberAt(trace_, now);
    if (number.isNone()) throw Misfit();
    *value = Box(std::move(number), boxing);
    return Arg::Of(now);
  }
  const ValueId now = TensorNow(was.value, value);
  return Arg::Of(now);
}

// Whether a size in it was fixed after the call had asked for it: it would be a constant now.
bool RepeatedCalls::Attempt::HasFixedSize(ValueId number) {
  return !WalkOperands(trace_.aten.graph(), number, [&](ValueId id, const Node* node) {
    if (node != nullptr) return node->is_scalar() ? Walk::kOn : Walk::kNotBelow;
    const SourceId source = trace_.aten.tensors.SourceOfInput(id);
    const bool is_fixed = source.valid() && IsNumber(trace_.guards.accessor(source)) && trace_.guards.IsFixed(source);
    return is_fixed ? Walk::kEnd : Walk::kOn;
  });
}

ValueId RepeatedCalls::Attempt::NumberNow(ValueId was) {
  const bool is_before = was.raw() < memo_.from.aten.values;
  if (!is_before && Slot(was).id.valid()) return Slot(was).id;
  const SourceId source = trace_.aten.tensors.SourceOfInput(was);
  if (is_before || !source.valid() || !memo_.part.Holds(source)) {
    if (HasFixedSize(was)) throw Misfit();
    return was;
  }
  Made& made = Slot(was);
  return made.id = NumberValue(trace_, Shadow{Shadow::Kind::kSource, repetition_.IsNow(source).raw()});
}

ValueId RepeatedCalls::Attempt::ValueOf(const at::Tensor& tensor) {
  const std::optional<ValueId> value = trace_.aten.tensors.ValueOf(tensor);
  if (!value) throw Misfit();  // its `data` was set
  return *value;
}

ValueId RepeatedCalls::Attempt::TensorNow(ValueId was, c10::IValue* value) {
  for (size_t i = 0; i < memo_.signature.args.size(); ++i) {
    const Argument& arg = memo_.signature.args[i];
    if (arg.scalar || arg.value != was) continue;
    const at::Tensor& tensor = TensorOf(e_.in[i + 1]);
    *value = tensor;
    const ValueId now = setting_.args[i].value;
    return now.valid() ? now : ValueOf(tensor);
  }
  Made& made = Slot(was);
  if (!made.tensor.defined()) throw Misfit();
  if (!made.id.valid()) made.id = ValueOf(made.tensor);  // a weight, used for the first time
  *value = made.tensor;
  return made.id;
}

// An op takes a number that may differ as such, and any other one as a constant.
bool RepeatedCalls::Attempt::HasFixedNumber(const Arg& arg) {
  bool has_fixed = false;
  ForEachUseIn(arg, [&](ValueId use) {
    has_fixed = has_fixed || (trace_.aten.graph().value(use).type.is_number() && !IsDynamic(trace_, use));
  });
  return has_fixed;
}

bool RepeatedCalls::Attempt::Op(size_t i, PlaceId at) {
  const Node& was = trace_.aten.graph().nodes[i];
  const std::vector<c10::Argument>& parameters = was.op->schema().arguments();
  std::vector<Arg> args;
  args.reserve(was.args.size());
  for (size_t k = 0; k < parameters.size(); ++k) {
    c10::IValue value;
    args.push_back(Now(trace_.aten.graph().nodes[i].args[k], &value, *parameters[k].type()));
    if (HasFixedNumber(args.back())) return false;
    stack_.push_back(std::move(value));
  }
  AllocZone outside(false);
  std::optional<UnlockedToThreadEnd> unlocked;
  if (!memo_.is_random) unlocked.emplace();  // no other code draws meanwhile
  trace_.aten.RunAgain(NodeId(static_cast<uint32_t>(i)), std::move(args), &stack_, at);
  return !trace_.aten.pending;
}

// Maps the values of node `was` to the values of node `is`, which an op has just made.
bool RepeatedCalls::Attempt::Bind(size_t was, size_t is) {
  const Graph& graph = trace_.aten.graph();
  const Node &old = graph.nodes[was], &now = graph.nodes[is];
  if (old.op.has_value() != now.op.has_value() || old.builtin_op != now.builtin_op ||
      old.outputs.size() != now.outputs.size()) {
    return false;
  }
  if (old.op && static_cast<size_t>(old.outputs.size()) != stack_.size()) return false;
  for (size_t k = 0; k < old.outputs.size(); ++k) {
    const Type &a = graph.value(old.outputs[k]).type, &b = graph.value(now.outputs[k]).type;
    if (!(a == b) || (memo_.asks_grad && a.requires_grad != b.requires_grad)) return false;
    Made& made = Slot(old.outputs[k]);
    made.id = now.outputs[k];
    if (a.kind == Type::Kind::kTensorList) {
      items_ = stack_[k].toTensorVector();
    } else if (old.op) {
      made.tensor = stack_[k].toTensor();
    } else {
      const auto index = static_cast<size_t>(old.args[1].constant.toInt());
      if (index >= items_.size()) return false;
      made.tensor = items_[index];
    }
  }
  return true;
}

// For numbers, or for assumptions that are checked at run time.
bool RepeatedCalls::Attempt::Scalar(size_t i, PlaceId at) {
  const Node was = trace_.aten.graph().nodes[i];
  if (was.builtin_op == BuiltinOp::kListItem) return false;  // comes with its list
  std::vector<Arg> args;
  std::vector<c10::IValue> values(was.args.size());
  for (size_t k = 0; k < was.args.size(); ++k) args.push_back(Now(was.args[k], &values[k], *c10::AnyType::get()));
  if (RowOf(was.builtin_op).result == Type::Kind::kInt && RowOf(was.builtin_op).operands == Type::Kind::kInt &&
      std::equal(args.begin(), args.end(), was.args.begin(), AreSameOperands)) {
    Slot(was.outputs[0]).id = was.outputs[0];  // IntOp finds it
    return true;
  }
  if (was.builtin_op == BuiltinOp::kContiguous && !values.at(0).toTensor().is_contiguous()) return false;
  if (was.builtin_op == BuiltinOp::kAnother && values.at(0).toTensor().is_same(values.at(1).toTensor())) return false;
  const ValueId now = trace_.aten.AddAgain(NodeId(static_cast<uint32_t>(i)), std::move(args), at);
  Slot(was.outputs[0]).id = now;
  if (trace_.numbers.not_negative.contains(was.outputs[0])) trace_.numbers.not_negative.insert(now);
  return true;
}

bool RepeatedCalls::Attempt::Reads() {
  for (const Read& read : memo_.reads) {
    TensorRead what;
    what.sizes = read.sizes || read.strides;
    what.strides = read.strides;
    const int arg = ArgumentOf(memo_.signature, read);
    if (arg >= 0 && setting_.args[static_cast<size_t>(arg)].existed()) {
      all_.Note(read);  // the same as before, but not for the calls around this one
      continue;
    }
    if (arg < 0 && read.source.valid()) {
      Read now = read;
      now.source = repetition_.IsNow(read.source);
      now.value = ValueId();
      all_.Note(now);
      if (read.kind == Read::Kind::kTensor) trace_.guards.Tensor(now.source, what, trace_.frames.Here());
      continue;
    }
    const ValueId now = arg >= 0 ? setting_.args[static_cast<size_t>(arg)].value : Slot(read.value).id;
    if (!now.valid()) return false;
    switch (read.kind) {
      case Read::Kind::kTensor:
        all_.NoteRead(SourceId(), now, read.sizes, read.strides);
        FixValue(trace_, now, what, read.strides ? &trace_.numbers.strides_read : &trace_.numbers.sizes_read);
        break;
      case Read::Kind::kRank:
        FixRank(trace_, now);
        break;
      case Read::Kind::kSize: {
        const Shadow size = SizeOf(trace_, now, read.dim);
        if (size.kind != read.size.kind || (size.kind != Shadow::Kind::kNone && size.id != read.size.id)) return false;
        if (size.kind == Shadow::Kind::kValue && HasFixedSize(ValueId(size.id))) return false;
        break;
      }
    }
  }
  return true;
}

Ref<> RepeatedCalls::Attempt::Give() {
  if (memo_.given_back >= 0) return Ref<>::New(e_.in[memo_.given_back + 1]);
  return Ref<>::Steal(WrapTensor(Slot(memo_.result).tensor));
}

}  // namespace frametap
