#include "frame_eval/replay/cached_entries.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "frame_eval/cpython/collector.h"
#include "frame_eval/replay/reify.h"
#include "frame_eval/segment/cached_functions.h"
#include "guards/objects/dict_items.h"
#include "guards/objects/well_known_objects.h"
#include "ir/graph/builtin_op.h"
#include "ir/graph/walk.h"

namespace frametap {
namespace {

// Computes numbers of the graph from the numbers that the guards have reached.
class NumbersAtEntry {
 public:
  explicit NumbersAtEntry(const Segment& segment) : segment_(segment) {}

  std::optional<Number> At(ValueId value) {
    const auto is_computed = [&](ValueId id, const Node* node) {
      return !known_.contains(id.raw()) && (node == nullptr || node->is_scalar());
    };
    for (const ValueId id : OperandsFirst(segment_.ir.graph, value, is_computed)) {
      const std::optional<Number> number = Compute(id);
      known_.emplace(id.raw(), number);
    }
    return Known(value);
  }

 private:
  std::optional<Number> Compute(ValueId value) {
    const Graph& graph = segment_.ir.graph;
    const NodeId def = graph.value(value).def;
    if (!def.valid()) return OfInput(value);
    const Node& node = graph.node(def);
    if (!node.is_scalar() || node.args.empty() || node.args.size() > 2) return std::nullopt;
    if (IsAssumption(node.builtin_op) || node.builtin_op == BuiltinOp::kSize ||
        node.builtin_op == BuiltinOp::kListItem) {
      return std::nullopt;
    }
    Number operands[2];
    for (size_t i = 0; i < node.args.size(); ++i) {
      const Arg& arg = node.args[i];
      std::optional<Number> operand;
      if (arg.kind == Arg::Kind::kValue) operand = Known(arg.value);
      if (arg.kind == Arg::Kind::kConst && arg.constant.isInt()) operand = Number::Int(arg.constant.toInt());
      if (arg.kind == Arg::Kind::kConst && arg.constant.isDouble()) operand = Number::Float(arg.constant.toDouble());
      if (!operand) return std::nullopt;
      operands[i] = *operand;
    }
    Number result;
    return frametap::Compute(node.builtin_op, operands[0], operands[1], &result) ? std::optional(result) : std::nullopt;
  }

  std::optional<Number> Known(ValueId value) const {
    const auto known = known_.find(value.raw());
    return known != known_.end() ? known->second : std::nullopt;
  }

  std::optional<Number> OfInput(ValueId value) const {
    const std::vector<ValueId>& inputs = segment_.ir.graph.inputs;
    const auto at = std::find(inputs.begin(), inputs.end(), value);
    if (at == inputs.end() || !segment_.ir.graph.value(value).type.is_number()) return std::nullopt;
    c10::IValue input;
    const SourceId source = segment_.input_sources[static_cast<size_t>(at - inputs.begin())];
    if (!GatherInput(*segment_.guards, source, &input)) {
      PyErr_Clear();
      return std::nullopt;
    }
    if (input.isInt()) return Number::Int(input.toInt());
    if (input.isDouble()) return Number::Float(input.toDouble());
    return std::nullopt;
  }

  const Segment& segment_;
  absl::flat_hash_map<uint32_t, std::optional<Number>> known_;
};

// The objects that a segment needs for its questions. Outputs of the graph that are not known yet stay empty.
class Questions {
 public:
  explicit Questions(const Segment& segment) : segment_(segment), reifier_(segment) {
    NumbersAtEntry numbers(segment);
    std::vector<c10::IValue> outputs;
    for (const ValueId output : segment.ir.graph.outputs) {
      const bool is_number = segment.ir.graph.value(output).type.is_number();
      const std::optional<Number> number = is_number ? numbers.At(output) : std::nullopt;
      if (!number) {
        outputs.emplace_back();
      } else {
        number->is_float ? outputs.emplace_back(number->f) : outputs.emplace_back(number->i);
      }
    }
    reifier_.set_outputs(std::move(outputs));
  }

  // Returns whether the cache has no other result than the one that was recorded.
  bool Agrees(const Effect& effect) {
    Asked now;
    now.function = reifier_.Make(effect.target);
    now.call = now.function ? reifier_.Make(effect.value) : Ref<>();
    if (!now.call || Py_TYPE(now.function.get()) != Objects().cached_function) return false;
    const CacheParts parts = PartsOfCached(now.function.get());
    if (parts.cache == nullptr) return false;
    NoteStanding(effect.value.items[0]);
    const AskedCall call = AskedCallOf(now.call.get());
    PyObject** const names = reinterpret_cast<PyTupleObject*>(call.names)->ob_item;
    const auto named = static_cast<size_t>(PyTuple_GET_SIZE(call.names));
    PyObject* const predicted = call.predicted;
    const CacheEntry entry = EntryOf(parts, call.args, call.count, names, named);
    if (entry.is_doubtful) return false;
    if (PyObject* const found = entry.result(); found != nullptr) {
      if (!IsSame(predicted, found) || IsChangeable(found)) return false;
    }
    // A call before this one fills the cache for the same arguments.
    for (const Asked& before : asked_) {
      if (before.function.get() != now.function.get() ||
          PyTuple_GET_SIZE(before.call.get()) != PyTuple_GET_SIZE(now.call.get()))
        continue;
      const AskedCall other = AskedCallOf(before.call.get());
      bool is_alike = true;
      for (size_t i = 0; i < call.count && is_alike; ++i) is_alike = MayBeSameArgument(other.args[i], call.args[i]);
      if (is_alike && !IsSame(other.predicted, predicted)) return false;
    }
    asked_.push_back(std::move(now));
    return true;
  }

 private:
  struct Asked {
    Ref<> function, call;
  };

  bool IsSame(PyObject* a, PyObject* b) const {
    return IsSameResult(a, b, [this](PyObject* part) {
      return std::find(standing_.begin(), standing_.end(), part) != standing_.end();
    });
  }

  // Objects in the recorded result that existed before.
  void NoteStanding(const Operand& operand) {
    const bool is_standing = operand.kind == Operand::Kind::kSource || operand.kind == Operand::Kind::kConst;
    if (is_standing) {
      if (Ref<> object = reifier_.Make(operand)) standing_.push_back(object.get());
    }
    for (const Operand& item : operand.items) NoteStanding(item);
  }

  // Whether the effects of the segment may change a list or dict in the cached result.
  bool IsChangeable(PyObject* found) const {
    if (PyTuple_CheckExact(found)) {
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(found); ++i) {
        if (IsChangeable(PyTuple_GET_ITEM(found, i))) return true;
      }
      return false;
    }
    if (std::find(standing_.begin(), standing_.end(), found) != standing_.end()) return false;
    const auto is_source = [&](SourceId source) {
      return !segment_.guards->IsNumber(source) && segment_.guards->Object(source) == found;
    };
    const bool holds_items = PyList_CheckExact(found) || PyDict_CheckExact(found);
    if (!holds_items) return false;
    if (std::any_of(segment_.operand_sources.begin(), segment_.operand_sources.end(), is_source)) return true;
    if (PyDict_CheckExact(found)) {
      for (const auto [key, value] : DictItems(found)) {
        if (IsChangeable(value)) return true;
      }
      return false;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(found); ++i) {
      if (IsChangeable(PyList_GET_ITEM(found, i))) return true;
    }
    return false;
  }

  const Segment& segment_;
  Reifier reifier_;
  std::vector<PyObject*> standing_;  // what an operand leads to, which the reifier or the segment holds
  std::vector<Asked> asked_;
};

}  // namespace

static bool AsksCache(const Effect& effect) { return effect.kind == Effect::Kind::kAsk; }

bool CachesAgree(const Segment& segment, MissReport* miss) {
  const std::vector<Effect>& effects = segment.ir.effects;
  if (std::none_of(effects.begin(), effects.end(), AsksCache)) return true;
  const ErrScope keep;
  const CollectorPause no_garbage;
  Questions questions(segment);
  for (const Effect& effect : effects) {
    if (!AsksCache(effect) || questions.Agrees(effect)) continue;
    PyErr_Clear();
    if (miss != nullptr) {
      miss->source = effect.target.text.empty() ? "a function under functools.lru_cache" : effect.target.text;
      miss->want = "no entry of its cache, or an equal one";
      miss->got = "another entry";
      miss->why = "the cache has another result for the call";
      miss->line = effect.at;
    }
    return false;
  }
  return true;
}

}  // namespace frametap
