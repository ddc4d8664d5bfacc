#include "frame_eval/record/fast_paths/repeated_calls.h"

#include <ATen/SavedTensorHooks.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "backends/reference/boxing.h"
#include "frame_eval/checks/fault_observer.h"
#include "frame_eval/checks/self_checking.h"
#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/state/random_state.h"
#include "guards/objects/kept_warnings.h"
#include "guards/objects/known_objects.h"
#include "guards/objects/object_end.h"
#include "guards/objects/tensor_door.h"
#include "guards/objects/thread_end.h"
#include "ir/graph/literal.h"
#include "ir/graph/scalar.h"
#include "ir/passes/writes.h"

namespace frametap {
namespace {

bool is_on = true;
uint64_t repeated = 0;

// For one class: the number of calls that are kept. After as many misfits a call is not tried any more.
constexpr size_t kMostOfOneClass = 8;
constexpr uint32_t kMostMisfits = 4;

bool HasOwnAttributes(PyObject* tensor) {
  PyObject* dict = DictAt(DictOf::kInstance, tensor);
  return dict != nullptr && PyDict_GET_SIZE(dict) > 0;
}

bool IsStrided(PyObject* tensor) { return TensorOf(tensor).layout() == c10::kStrided && !TensorOf(tensor).is_nested(); }

// Guards of its own describe its whole content. For the content that C code hides they describe the type only.
bool IsTold(PyObject* object) {
  if (PyIter_Check(object) || PyAnySet_Check(object)) return false;
  return IsTensor(object) || PyTuple_CheckExact(object) || PyList_CheckExact(object) || PyDict_CheckExact(object) ||
         PyODict_CheckExact(object) || PyFunction_Check(object) || PyObject_TypeCheck(object, Objects().module) ||
         Recorder::IsOfPythonClass(object);
}

bool IsOnlyThread() {
  PyThreadState* const first = PyInterpreterState_ThreadHead(PyInterpreterState_Get());
  return first != nullptr && PyThreadState_Next(first) == nullptr;
}

bool AreSameOperands(const Arg& a, const Arg& b) {
  return a.kind == b.kind && (a.kind == Arg::Kind::kValue ? a.value == b.value : SameConst(a.constant, b.constant));
}

// Values as they are numbered by two recordings of the same call.
using Numbering = absl::flat_hash_map<ValueId, ValueId>;

bool AreEqual(ValueId a, ValueId b, Numbering* numbering) { return numbering->try_emplace(a, b).first->second == b; }

bool AreEqual(const Arg& a, const Arg& b, Numbering* numbering) {
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

std::unique_ptr<RepeatedCalls> RepeatedCalls::For(Recorder& recorder) {
  // A number that has changed in one layer is left open there, and only there (numbers/N3).
  const bool may_be =
      is_on && !recorder.has_marks_ && !recorder.in_anomaly_mode_ && !recorder.store_.has_changing_numbers();
  return may_be ? std::make_unique<RepeatedCalls>(recorder) : nullptr;
}

// ---- what a call is -------------------------------------------------------------------------------------------------

// P1, P2: of all that the trace did so far.
bool RepeatedCalls::MayRepeat() const {
  return !r_.aten_.pending && r_.effects_.empty() && r_.mutated_sources_.empty() && r_.dict_writers_.empty() &&
         r_.context_sets_.empty() && r_.iterators_.empty() && r_.outside_generators_.empty() && r_.ending_.empty() &&
         r_.watched_.empty() && r_.decisions_.empty() && !r_.has_open_cells_ && !r_.aten_.writes_inputs() &&
         at::SavedTensorDefaultHooks::get_tls_state().stack.empty();
}

template <class Numbers>
RepeatedCalls::FactsIn<Numbers> RepeatedCalls::FactsIn<Numbers>::Of(PyObject* object) {
  const at::Tensor& tensor = TensorOf(object);
  return {TensorGuard::BasicsOf(object), Numbers(tensor.sizes().begin(), tensor.sizes().end()),
          Numbers(tensor.strides().begin(), tensor.strides().end()), tensor.storage_offset()};
}

RepeatedCalls::Switches RepeatedCalls::SwitchesNow() const {
  EagerState state = r_.state_now_;
  state.autocast_cleared = r_.aten_.autocast_cleared();
  return {state, r_.backends_now_, r_.autocast_nesting_};
}

RepeatedCalls::Moment RepeatedCalls::Now() const {
  return {r_.guards_.mark(), r_.aten_.mark(), r_.places_.mark(), reads_.size()};
}

// None for a call that is neither repeated nor kept.
std::optional<RepeatedCalls::Setting> RepeatedCalls::SettingOf(const Event& e) const {
  const Known* known = r_.Find(e.in[0]);
  if (known == nullptr || known->state != Known::State::kSource || known->written || known->mutated)
    return std::nullopt;
  Setting setting;
  setting.said = r_.guards_.SaidOf(known->source);
  if (setting.said == GuardRecorder::Said::kMore) return std::nullopt;
  setting.type = Py_TYPE(e.in[0]);
  setting.module = known->source;
  setting.pinned = known->pinned;
  setting.names = Ref<>::New(e.kwnames);
  setting.switches = SwitchesNow();
  setting.args.reserve(static_cast<size_t>(e.n) - 1);
  for (int i = 1; i < e.n; ++i) {
    PyObject* const object = e.in[i];
    Argument& arg = setting.args.emplace_back();
    arg.shadow = e.shadows[i];
    if (Recorder::IsScalar(object)) {
      arg.scalar = Ref<>::New(object);
      continue;
    }
    if (!IsTensor(object) || !IsExactTensor(object) || HasOwnAttributes(object)) return std::nullopt;
    const AtenRecorder::KnownTensor* of_tensor = r_.aten_.Find(TensorOf(object));
    if (of_tensor == nullptr || of_tensor->resized || !IsStrided(object)) return std::nullopt;
    arg.impl = TensorOf(object).unsafeGetTensorImpl();
    arg.source = of_tensor->source;
    arg.unread = arg.existed() && r_.guards_.IsUnread(arg.source);
    arg.value = of_tensor->value;
    if (!arg.existed() && !arg.value.valid()) return std::nullopt;
    arg.facts = Facts::Of(object);
  }
  return setting;
}

bool RepeatedCalls::AreAlike(const Heard& heard, const Setting& is) const {
  const Setting& was = heard.setting;
  if (was.said != is.said || was.pinned != is.pinned || was.args.size() != is.args.size() ||
      !(was.switches == is.switches)) {
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
    if (a.existed() && b.existed() ? a.impl != b.impl : b.existed() || (a.existed() && !(a.unread && r_.sizes_open())))
      return false;
    Facts facts = b.facts;
    if (!heard.asks_grad) facts.basics.requires_grad = a.facts.basics.requires_grad;
    if (!(a.facts == facts)) return false;
    for (size_t j = 0; j < i; ++j) {
      if ((was.args[j].impl == a.impl) != (is.args[j].impl == b.impl)) return false;
    }
  }
  return true;
}

// ---- whether it may be repeated -------------------------------------------------------------------------------------

bool RepeatedCalls::IsGood(Heard* heard) {
  if (heard->use != Heard::Use::kUnknown) return heard->use == Heard::Use::kGood;
  heard->use = Heard::Use::kNone;
  std::optional<GuardRecorder::Part> part =
      r_.guards_.PartOf(heard->setting.module, heard->from.guards, heard->to.guards);
  if (!part) return false;
  // An object first seen there was seen only there, or is known by another path: then another module has to have it,
  // too.
  const auto is_in = [](const std::vector<SourceId>& sources, SourceId id) {
    return std::find(sources.begin(), sources.end(), id) != sources.end();
  };
  absl::flat_hash_map<PyObject*, SourceId> first;
  for (const SourceId id : part->sources) {
    PyObject* const object = r_.guards_.seen(id);
    Heard::Meeting& meeting = heard->meetings.emplace_back();
    const bool is_shared = is_in(part->shared, id), is_fixed = is_in(part->fixed, id);
    if (Recorder::IsScalar(object)) {
      if (is_shared || is_fixed) meeting.kind = Heard::Meeting::Kind::kShared;
      continue;
    }
    const auto [met, is_new] = first.try_emplace(object, id);
    meeting = {is_new ? Heard::Meeting::Kind::kNew : Heard::Meeting::Kind::kAgain, met->second};
    if (!IsTold(object)) return false;
    const SourceId source = r_.SourceOf(object);
    if (!source.valid() && !is_fixed) {
      if (r_.Find(object) != nullptr) return false;
      continue;  // a dict in which something was not found: the program has not seen it
    }
    if (!source.valid() || !part->Holds(source)) {
      if (!is_shared && !is_fixed) return false;
      meeting.kind = Heard::Meeting::Kind::kShared;
      continue;
    }
    // Another identity is allowed only where it determines nothing about the content.
    const bool is_open =
        PyObject_TypeCheck(object, Objects().module) || PyDict_CheckExact(object) || PyODict_CheckExact(object);
    if (is_shared || (is_fixed && !is_open)) return false;
  }
  for (size_t i = heard->from.guards.sources; i < heard->to.guards.sources; ++i) {
    const SourceId id(static_cast<uint32_t>(i));
    PyObject* const object = r_.guards_.accessor(id) == Accessor::kPinned ? r_.guards_.seen(id) : nullptr;
    if (object != nullptr && (IsTensor(object) || PyObject_TypeCheck(object, Objects().module))) return false;
  }
  heard->part = std::move(*part);
  if (!HasGoodNodes(heard)) return false;
  // P3. Reads of other objects are guarded already.
  const auto was_made = [&](ValueId value) {
    return value.raw() >= heard->from.aten.values && value.raw() < heard->to.aten.values;
  };
  for (size_t i = heard->from.reads; i < heard->to.reads; ++i) {
    const Read& read = reads_[i];
    const bool is_inside = read.source.valid() ? heard->part.Holds(read.source) : was_made(read.value);
    if (is_inside || ArgumentOf(heard->setting, read) >= 0) heard->reads.push_back(read);
  }
  heard->use = Heard::Use::kGood;
  return true;
}

// Which argument it is; -1: none.
int RepeatedCalls::GivenBack(const Event& e, PyObject* result) {
  const auto at = std::find(e.in + 1, e.in + e.n, result);
  return at == e.in + e.n ? -1 : static_cast<int>(at - e.in) - 1;
}

// Which argument was asked; -1: something else.
int RepeatedCalls::ArgumentOf(const Setting& setting, const Read& read) {
  for (size_t i = 0; i < setting.args.size(); ++i) {
    const Argument& arg = setting.args[i];
    if (arg.scalar) continue;
    if (read.source.valid() ? arg.source == read.source : arg.value == read.value) return static_cast<int>(i);
  }
  return -1;
}

bool RepeatedCalls::HasGoodNodes(Heard* heard) const {
  const Graph& graph = r_.aten_.graph();
  const AtenRecorder::Mark &from = heard->from.aten, &to = heard->to.aten;
  if (from.constants != to.constants) return false;
  // The content of the module, and numbers outside of it: the same again.
  absl::flat_hash_set<ValueId> inputs;
  for (size_t i = from.inputs; i < to.inputs; ++i) {
    const auto& [source, value] = r_.aten_.inputs()[i];
    if (heard->part.Holds(source) || graph.value(value).type.is_number()) inputs.insert(value);
  }
  std::vector<size_t> last_users(to.values - from.values, to.nodes);
  const auto is_good = [&](ValueId use, size_t node) {
    const Value& value = graph.value(use);
    if (value.def.valid() && value.def.raw() >= from.nodes) {
      last_users[use.raw() - from.values] = node;
      return true;
    }
    if (inputs.contains(use) || (use.raw() < from.values && value.type.is_number())) return true;
    const auto& args = heard->setting.args;
    return std::any_of(args.begin(), args.end(), [&](const Argument& arg) { return !arg.scalar && arg.value == use; });
  };
  for (size_t i = from.nodes; i < to.nodes; ++i) {
    const Node& node = graph.nodes[i];
    if (!(graph.states[node.state.raw()] == heard->setting.switches.state)) return false;
    if (node.op) {
      const OpFacts& facts = *r_.aten_.NotesOf(*node.op).facts;
      const bool is_of_torch = node.op->operator_name().name.rfind("aten::", 0) == 0;
      if (!is_of_torch || facts.no_result || facts.scalar_from_data || facts.scalar_from_metadata ||
          facts.data_dependent_size) {
        return false;
      }
      const bool may_write = facts.writes_inputs && (node.op->schema().is_mutable() || !IsDropout(*node.op));
      for (size_t k = 0; may_write && k < node.args.size(); ++k) {
        if (WritesTo(node, k)) return false;
      }
      heard->is_random = heard->is_random || facts.random;
      const auto is_on_cpu = [&](ValueId out) { return graph.value(out).type.device.is_cpu(); };
      if (facts.random && !std::all_of(node.outputs.begin(), node.outputs.end(), is_on_cpu)) return false;
    } else if (node.scalar_op == ScalarOp::kSize) {
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
  const size_t result = heard->given_back >= 0 ? to.values : heard->result.raw() - from.values;
  for (size_t value = 0; value < last_users.size(); ++value) {
    if (value != result && last_users[value] < to.nodes) heard->last_uses.emplace_back(last_users[value], value);
  }
  std::sort(heard->last_uses.begin(), heard->last_uses.end());
  if (heard->given_back >= 0) return true;
  const NodeId made_by = graph.value(heard->result).def;
  return made_by.valid() && made_by.raw() >= from.nodes && made_by.raw() < to.nodes;
}

// ---- repeating it ---------------------------------------------------------------------------------------------------

class RepeatedCalls::Attempt {
 public:
  Attempt(RepeatedCalls& repeats, const Heard& heard, const Setting& setting, const Event& e)
      : all_(repeats),
        r_(repeats.r_),
        heard_(heard),
        setting_(setting),
        e_(e),
        began_(repeats.Now()),
        observed_(fault_observer != nullptr ? fault_observer->BeginAttempt() : nullptr),
        ranks_(r_.aten_.unsettled_ranks()),
        repetition_(heard.part, setting.module) {}

  // Null if it does not fit, and must be taken back.
  Ref<> Result() {
    try {
      Ref<> result = Guards() && Nodes() && Reads() ? Give() : Ref<>();
      if (PyErr_Occurred() == nullptr && !r_.aten_.pending) return result;
    } catch (const Misfit&) {
    } catch (const Break&) {
    } catch (const std::exception&) {  // interpreted, it raises where it should
    }
    return Ref<>();
  }

  void TakeBack() {
    if (observed_ != nullptr) [[unlikely]]
      observed_->TakenBack();
    if (random_state_.defined()) SetRandomState(random_state_);
    PyErr_Clear();
    made_.clear();
    stack_.clear();
    items_.clear();
    r_.guards_.Rewind(began_.guards);
    r_.aten_.Rewind(began_.aten);
    r_.aten_.Unsettle(std::move(ranks_));
    r_.aten_.pending.reset();
    for (c10::TensorImpl* tensor : added_) r_.aten_.Forget(tensor);
    r_.ForgetSince(began_.guards, began_.aten);
    all_.reads_.resize(began_.reads);
  }

  const Moment& began() const { return began_; }

 private:
  struct Misfit {};
  struct Made {
    ValueId id;
    at::Tensor tensor;
  };

  bool Guards() {
    std::vector<PyObject*> met;
    met.reserve(heard_.meetings.size());
    added_.reserve(heard_.meetings.size());
    auto meeting = heard_.meetings.begin();
    const auto fits = [&](SourceId was, SourceId is) {
      PyObject *const object = r_.guards_.seen(was), *const other = r_.guards_.seen(is);
      const auto [kind, first] = *meeting++;
      switch (kind) {
        case Heard::Meeting::Kind::kScalar:
          return true;
        case Heard::Meeting::Kind::kShared:
          return other == object;
        case Heard::Meeting::Kind::kAgain:
          return other == r_.guards_.seen(repetition_.IsNow(first));
        case Heard::Meeting::Kind::kNew:
          break;
      }
      if (EndRunsCode(other)) return false;
      met.push_back(other);
      if (!IsTensor(object)) return r_.Find(other) == nullptr;
      const bool is_alike = IsStrided(object) && IsStrided(other) && FactsNow::Of(object) == FactsNow::Of(other);
      if (!is_alike || HasOwnAttributes(other) || !r_.aten_.AddSource(TensorOf(other), is)) return false;
      added_.push_back(TensorOf(other).unsafeGetTensorImpl());
      return true;
    };
    if (!r_.guards_.Repeat(&repetition_, fits)) return false;
    std::sort(met.begin(), met.end());
    if (std::adjacent_find(met.begin(), met.end()) != met.end()) return false;
    for (const SourceId was : heard_.part.sources) r_.SetPinned(repetition_.IsNow(was), r_.pinned_[was.raw()]);
    return true;
  }

  bool Nodes() {
    const size_t first = heard_.from.aten.nodes, last = heard_.to.aten.nodes;
    made_.resize(heard_.to.aten.values - heard_.from.aten.values);
    if (first == last) return true;
    if (heard_.is_random && !IsOnlyThread()) return false;
    if (heard_.is_random) random_state_ = RandomState();
    for (size_t i = heard_.from.aten.inputs; i < heard_.to.aten.inputs; ++i) {
      const auto [source, value] = r_.aten_.inputs()[i];
      PyObject* const seen = heard_.part.Holds(source) ? r_.guards_.seen(repetition_.IsNow(source)) : nullptr;
      if (seen != nullptr && IsTensor(seen)) Slot(value).tensor = TensorOf(seen);
    }
    Places::Repetition places(heard_.site, r_.PlaceOf(r_.frames_.size() - 1), heard_.from.places, heard_.to.places);
    auto last_use = heard_.last_uses.begin();
    stack_.reserve(8);  // arguments of most ops
    KeptWarnings warnings;
    const c10::WarningUtils::WarningHandlerGuard keep(&warnings);
    for (size_t i = first; i < last; ++i) {
      const PlaceId at =
          r_.places_.Repeat(r_.aten_.places()[i], &places, [&](SourceId was) { return repetition_.IsNow(was); });
      if (at == kNowhere) return false;
      const size_t next = r_.aten_.graph().nodes.size();
      if (r_.aten_.graph().nodes[i].op) {
        if (!Op(i, at)) return false;
        const size_t count = r_.aten_.graph().nodes.size() - next;
        if (count > last - i) return false;
        for (size_t k = 0; k < count; ++k) {
          if (!Bind(i + k, next + k)) return false;
        }
        i += count - 1;  // items of a list came with it
      } else {
        if (!Scalar(i, at)) return false;
      }
      stack_.clear();
      for (; last_use != heard_.last_uses.end() && last_use->first <= i; ++last_use) {
        made_[last_use->second].tensor = at::Tensor();
      }
    }
    return warnings.empty();
  }

  Made& Slot(ValueId was) { return made_[was.raw() - heard_.from.aten.values]; }

  // The present counterpart of a value of the call; `*value`, if it is needed.
  Arg Now(const Arg& was, c10::IValue* value, const c10::Type& type) {
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
    const Graph& graph = r_.aten_.graph();
    if (graph.value(was.value).type.is_number()) {
      const ValueId now = NumberNow(was.value);
      c10::IValue number = r_.NumberAt(now);
      if (number.isNone()) throw Misfit();
      *value = Box(std::move(number), boxing);
      return Arg::Of(now);
    }
    const ValueId now = TensorNow(was.value, value);
    return Arg::Of(now);
  }

  // Whether a size in it was fixed after the call had asked for it: it would be a constant now.
  bool HasFixedSize(ValueId number) {
    const Value& value = r_.aten_.graph().value(number);
    if (!value.def.valid()) {
      const SourceId source = r_.aten_.SourceOfInput(number);
      return source.valid() && IsNumber(r_.guards_.accessor(source)) && r_.guards_.IsFixed(source);
    }
    const Node& node = r_.aten_.graph().node(value.def);
    bool has_fixed = false;
    if (node.is_scalar()) ForEachUse(node.args, [&](ValueId use) { has_fixed = has_fixed || HasFixedSize(use); });
    return has_fixed;
  }

  ValueId NumberNow(ValueId was) {
    const bool is_before = was.raw() < heard_.from.aten.values;
    if (!is_before && Slot(was).id.valid()) return Slot(was).id;
    const SourceId source = r_.aten_.SourceOfInput(was);
    if (is_before || !source.valid() || !heard_.part.Holds(source)) {
      if (HasFixedSize(was)) throw Misfit();
      return was;
    }
    Made& made = Slot(was);
    return made.id = r_.NumberValue(Shadow{Shadow::Kind::kSource, repetition_.IsNow(source).raw()});
  }

  ValueId TensorNow(ValueId was, c10::IValue* value) {
    for (size_t i = 0; i < heard_.setting.args.size(); ++i) {
      const Argument& arg = heard_.setting.args[i];
      if (arg.scalar || arg.value != was) continue;
      const at::Tensor& tensor = TensorOf(e_.in[i + 1]);
      *value = tensor;
      const ValueId now = setting_.args[i].value;
      return now.valid() ? now : r_.aten_.ValueOf(tensor).value();
    }
    Made& made = Slot(was);
    if (!made.tensor.defined()) throw Misfit();
    if (!made.id.valid()) made.id = r_.aten_.ValueOf(made.tensor).value();  // a weight, used for the first time
    *value = made.tensor;
    return made.id;
  }

  // An op takes a number that may differ as such, and any other one as a constant.
  bool HasFixedNumber(const Arg& arg) {
    bool has_fixed = false;
    ForEachUseIn(arg, [&](ValueId use) {
      has_fixed = has_fixed || (r_.aten_.graph().value(use).type.is_number() && !r_.IsDynamic(use));
    });
    return has_fixed;
  }

  bool Op(size_t i, PlaceId at) {
    const Node& was = r_.aten_.graph().nodes[i];
    const std::vector<c10::Argument>& parameters = was.op->schema().arguments();
    std::vector<Arg> args;
    args.reserve(was.args.size());
    for (size_t k = 0; k < parameters.size(); ++k) {
      c10::IValue value;
      args.push_back(Now(r_.aten_.graph().nodes[i].args[k], &value, *parameters[k].type()));
      if (HasFixedNumber(args.back())) return false;
      stack_.push_back(std::move(value));
    }
    AllocZone outside(false);
    std::optional<UnlockedToThreadEnd> unlocked;
    if (!heard_.is_random) unlocked.emplace();  // no other code draws meanwhile
    r_.aten_.RunAgain(NodeId(static_cast<uint32_t>(i)), std::move(args), &stack_, at);
    return !r_.aten_.pending;
  }

  // Maps the values of node `was` to the values of node `is`, which an op has just made.
  bool Bind(size_t was, size_t is) {
    const Graph& graph = r_.aten_.graph();
    const Node &old = graph.nodes[was], &now = graph.nodes[is];
    if (old.op.has_value() != now.op.has_value() || old.scalar_op != now.scalar_op ||
        old.outputs.size() != now.outputs.size()) {
      return false;
    }
    if (old.op && static_cast<size_t>(old.outputs.size()) != stack_.size()) return false;
    for (size_t k = 0; k < old.outputs.size(); ++k) {
      const Type &a = graph.value(old.outputs[k]).type, &b = graph.value(now.outputs[k]).type;
      if (!(a == b) || (heard_.asks_grad && a.requires_grad != b.requires_grad)) return false;
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
  bool Scalar(size_t i, PlaceId at) {
    const Node was = r_.aten_.graph().nodes[i];
    if (was.scalar_op == ScalarOp::kListItem) return false;  // comes with its list
    std::vector<Arg> args;
    std::vector<c10::IValue> values(was.args.size());
    for (size_t k = 0; k < was.args.size(); ++k) args.push_back(Now(was.args[k], &values[k], *c10::AnyType::get()));
    if (RowOf(was.scalar_op).result == Type::Kind::kInt && RowOf(was.scalar_op).operands == Type::Kind::kInt &&
        std::equal(args.begin(), args.end(), was.args.begin(), AreSameOperands)) {
      Slot(was.outputs[0]).id = was.outputs[0];  // Recorder::IntOp finds it
      return true;
    }
    if (was.scalar_op == ScalarOp::kContiguous && !values.at(0).toTensor().is_contiguous()) return false;
    if (was.scalar_op == ScalarOp::kAnother && values.at(0).toTensor().is_same(values.at(1).toTensor())) return false;
    const ValueId now = r_.aten_.AddAgain(NodeId(static_cast<uint32_t>(i)), std::move(args), at);
    Slot(was.outputs[0]).id = now;
    if (r_.not_negative_.contains(was.outputs[0])) r_.not_negative_.insert(now);
    return true;
  }

  bool Reads() {
    for (const Read& read : heard_.reads) {
      TensorRead what;
      what.sizes = read.sizes || read.strides;
      what.strides = read.strides;
      const int arg = ArgumentOf(heard_.setting, read);
      if (arg >= 0 && setting_.args[static_cast<size_t>(arg)].existed()) {
        all_.Note(read);  // the same as before, but not for the calls around this one
        continue;
      }
      if (arg < 0 && read.source.valid()) {
        Read now = read;
        now.source = repetition_.IsNow(read.source);
        now.value = ValueId();
        all_.Note(now);
        if (read.kind == Read::Kind::kTensor) r_.guards_.Tensor(now.source, what, r_.Here());
        continue;
      }
      const ValueId now = arg >= 0 ? setting_.args[static_cast<size_t>(arg)].value : Slot(read.value).id;
      if (!now.valid()) return false;
      switch (read.kind) {
        case Read::Kind::kTensor:
          all_.NoteRead(SourceId(), now, read.sizes, read.strides);
          r_.FixValue(now, what, read.strides ? &r_.strides_read_ : &r_.sizes_read_);
          break;
        case Read::Kind::kRank:
          r_.FixRank(now);
          break;
        case Read::Kind::kSize: {
          const Shadow size = r_.SizeOf(now, read.dim);
          if (size.kind != read.size.kind || (size.kind != Shadow::Kind::kNone && size.id != read.size.id))
            return false;
          if (size.kind == Shadow::Kind::kValue && HasFixedSize(ValueId(size.id))) return false;
          break;
        }
      }
    }
    return true;
  }

  Ref<> Give() {
    if (heard_.given_back >= 0) return Ref<>::New(e_.in[heard_.given_back + 1]);
    return Ref<>::Steal(WrapTensor(Slot(heard_.result).tensor));
  }

  RepeatedCalls& all_;
  Recorder& r_;
  const Heard& heard_;
  const Setting& setting_;
  const Event& e_;
  const Moment began_;
  const std::unique_ptr<FaultObserver::Ops> observed_;
  std::vector<ValueId> ranks_;  // that follow from sizes, before
  GuardRecorder::Repetition repetition_;
  std::vector<Made> made_;               // values of the call, by their numbers behind its first one
  std::vector<c10::TensorImpl*> added_;  // known since this attempt began
  std::vector<at::Tensor> items_;
  torch::jit::Stack stack_;
  at::Tensor random_state_;  // before
};

// ---- the calls of a recording ---------------------------------------------------------------------------------------

Ref<> RepeatedCalls::Call(const FrameNote& note, const Event& e) {
  while (!open_.empty() && open_.back().depth >= r_.frames_.size()) open_.pop_back();
  std::optional<Setting> setting = MayRepeat() ? SettingOf(e) : std::nullopt;
  if (!setting) return Ref<>();
  std::optional<Said> expected;
  const bool is_checking = std::any_of(open_.begin(), open_.end(), [](const Open& call) { return call.expected; });
  const auto it = heard_.find(setting->type);
  if (it != heard_.end() && !is_checking && !at::hasCallbacks()) {
    for (size_t i = it->second.size(); i-- > 0 && !expected;) {
      Heard& heard = *it->second[i];
      if (heard.misfits > kMostMisfits + heard.times || !AreAlike(heard, *setting) || !IsGood(&heard)) continue;
      Attempt attempt(*this, heard, *setting, e);
      Ref<> result = attempt.Result();
      const bool is_checked = result && SelfChecking() && heard.checks++ % 2 == 0;
      if (is_checked) expected = SaidSince(attempt.began(), result.get(), e);
      if (result && !is_checked) {
        ++heard.times;
        ++repeated;
        if (heard.asks_grad) NoteRequiresGrad();
        return result;
      }
      if (!result) ++heard.misfits;
      attempt.TakeBack();
    }
  }
  Heard heard;
  heard.setting = std::move(*setting);
  heard.from = Now();
  open_.push_back({&note, r_.frames_.size(), std::move(heard), std::move(expected)});
  return Ref<>();
}

void RepeatedCalls::Returned(const FrameNote& note, const Event& e, PyObject* result) {
  while (!open_.empty() && open_.back().depth > r_.frames_.size()) open_.pop_back();
  if (open_.empty() || open_.back().note != &note) return;
  Open call = std::move(open_.back());
  open_.pop_back();
  Heard& heard = call.heard;
  heard.to = Now();
  const Setting& setting = heard.setting;
  const bool is_plain = MayRepeat() && result != nullptr && IsTensor(result) && SwitchesNow() == setting.switches;
  if (call.expected) {
    const std::string difference =
        is_plain ? Difference(*call.expected, SaidSince(heard.from, result, e)) : "it is no call to be repeated";
    if (!difference.empty() && !r_.aten_.pending) {
      fault_ = absl::StrCat("a call of ", setting.type->tp_name, " was repeated wrongly: ", difference);
    }
    return;
  }
  if (!is_plain || !IsExactTensor(result)) return;
  heard.given_back = GivenBack(e, result);
  const AtenRecorder::KnownTensor* known = r_.aten_.Find(TensorOf(result));
  if (known == nullptr || (heard.given_back < 0 && !known->value.valid())) return;
  heard.result = known->value;
  // The values of arguments that were used for the first time.
  for (size_t i = 0; i < heard.setting.args.size(); ++i) {
    Argument& arg = heard.setting.args[i];
    if (arg.unread) arg.unread = r_.guards_.OnlySizesRead(arg.source, heard.from.guards, heard.to.guards);
    if (arg.scalar || arg.value.valid()) continue;
    const AtenRecorder::KnownTensor* of_arg = r_.aten_.Find(TensorOf(e.in[i + 1]));
    if (of_arg != nullptr && of_arg->value.valid() && r_.aten_.IsInput(of_arg->value)) arg.value = of_arg->value;
  }
  heard.site = r_.PlaceOf(r_.frames_.size() - 1);
  auto& others = heard_[setting.type];
  if (others.size() == kMostOfOneClass) others.erase(others.begin());
  others.push_back(std::make_unique<Heard>(std::move(heard)));
}

void RepeatedCalls::MeetSource(SourceId source, bool by_path) {
  for (const Open& call : open_) {
    const SourceId module = call.heard.setting.module;
    for (SourceId way = by_path ? module : r_.guards_.parent(module); way.valid(); way = r_.guards_.parent(way)) {
      if (way == source) return Spoil();
    }
  }
}

void RepeatedCalls::DropFrom(size_t nodes) {
  for (auto& [type, calls] : heard_) {
    std::erase_if(calls, [nodes](const std::unique_ptr<Heard>& heard) { return heard->to.aten.nodes > nodes; });
  }
}

void RepeatedCalls::Spoil() {
  if (std::any_of(open_.begin(), open_.end(), [](const Open& call) { return call.expected.has_value(); })) {
    fault_ = "a call was repeated that cannot be";
  }
  open_.clear();
}

RepeatedCalls::Said RepeatedCalls::SaidSince(const Moment& moment, PyObject* result, const Event& e) const {
  Said said;
  said.guards = r_.guards_.SaidSince(moment.guards);
  said.values = moment.aten.values;
  const Graph& graph = r_.aten_.graph();
  for (size_t i = moment.aten.nodes; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    const Type::Kind kind = node.is_scalar() ? graph.value(node.outputs[0]).type.kind : Type::Kind::kTensor;
    if (kind == Type::Kind::kInt || kind == Type::Kind::kFloat) continue;  // stands before its use, somewhere
    said.made.push_back(node);
    said.places.push_back(r_.aten_.places()[i]);
  }
  said.given_back = GivenBack(e, result);
  if (const auto* known = r_.aten_.Find(TensorOf(result)); known != nullptr) said.result = known->value;
  return said;
}

std::string RepeatedCalls::Difference(const Said& expected, const Said& got) const {
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
  Numbering numbering;
  for (uint32_t i = 0; i < expected.values; ++i) numbering[ValueId(i)] = ValueId(i);
  for (size_t i = 0; i < got.made.size(); ++i) {
    const Node &a = expected.made[i], &b = got.made[i];
    bool same = a.op_name() == b.op_name() && a.args.size() == b.args.size() && a.outputs.size() == b.outputs.size() &&
                a.state == b.state && r_.places_.AreAlike(expected.places[i], got.places[i]);
    for (size_t k = 0; same && k < a.args.size(); ++k) same = AreEqual(a.args[k], b.args[k], &numbering);
    for (size_t k = 0; same && k < a.outputs.size(); ++k) same = AreEqual(a.outputs[k], b.outputs[k], &numbering);
    if (!same) return absl::StrCat("node ", i, ", ", b.op_name());
  }
  const bool same_value = expected.given_back >= 0 || AreEqual(expected.result, got.result, &numbering);
  if (expected.given_back != got.given_back || !same_value) return "another result";
  return "";
}

}  // namespace frametap
