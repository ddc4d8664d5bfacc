// Turns the recorder's knowledge at the end into a segment: a graph without unused nodes, guards, run-time checks
// (aliases, sizes, examples), the exit. Not here: operands (describe.cc).
#include <algorithm>
#include <functional>

#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/record/recorder.h"
#include "frame_eval/segment/changes.h"
#include "guards/collect/frozen_guards.h"
#include "guards/must.h"
#include "guards/objects/known_objects.h"
#include "guards/objects/object_end.h"
#include "guards/objects/tensor_door.h"
#include "ir/graph/scalar.h"
#include "ir/ops/op_facts.h"

namespace frametap {
namespace {

c10::IValue ExampleOf(PyObject* seen) {
  if (IsTensor(seen)) return TensorOf(seen);
  if (PyFloat_Check(seen)) return PyFloat_AS_DOUBLE(seen);
  int overflow = 0;
  return PyLong_Check(seen) ? c10::IValue(static_cast<int64_t>(PyLong_AsLongLongAndOverflow(seen, &overflow)))
                            : c10::IValue();
}

void ForEachOperand(SnapshotFrame& frame, const std::function<void(Operand&)>& f);

void ForEachOperand(Operand& operand, const std::function<void(Operand&)>& f) {
  f(operand);
  for (Operand& item : operand.items) ForEachOperand(item, f);
  for (SnapshotFrame& frame : operand.frame) ForEachOperand(frame, f);
}

void ForEachOperand(SnapshotFrame& frame, const std::function<void(Operand&)>& f) {
  for (auto& [name, operand] : frame.locals) ForEachOperand(operand, f);
  for (Operand& operand : frame.stack) ForEachOperand(operand, f);
}

void ForEachOperand(SegmentIr& ir, const std::function<void(Operand&)>& f) {
  for (Effect& effect : ir.effects) {
    ForEachOperand(effect.target, f);
    ForEachOperand(effect.key, f);
    ForEachOperand(effect.value, f);
    ForEachOperand(effect.frame, f);
  }
  ForEachOperand(ir.exit.result, f);
  for (SnapshotFrame& frame : ir.exit.frames) ForEachOperand(frame, f);
}

}  // namespace

// Returns whether an op after the first change may refuse elements where the exception would be visible: a handler
// waits for it, or effects have come before it.
bool Recorder::ErrorsAreSeen() const {
  const Graph& graph = aten_.graph();
  bool changed = false, sizes_from_elements = false;
  size_t first_effect = PendingEffect::kSeenByNobody;
  for (const PendingEffect& effect : effects_) first_effect = std::min(first_effect, effect.nodes_before);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    if (!node.op) {
      if (changed && IsAssumption(node.scalar_op)) return true;
      continue;
    }
    const OpFacts& facts = FactsOf(*node.op);
    changed = changed || facts.changes_what_was();
    sizes_from_elements = sizes_from_elements || facts.data_dependent_size || facts.scalar_from_data;
    if (!changed || !(facts.raises_on_elements || sizes_from_elements)) continue;
    if (first_effect <= i) return true;
    if (places_.IsHandled(aten_.places()[i])) return true;
  }
  return false;
}

// Unused number nodes, list items and inputs are removed, except nodes that refuse or raise. Values are numbered
// again; the rest leaves the recorder.
void Recorder::Compact(Segment* segment) {
  SegmentIr* const ir = &segment->ir;
  Graph& old = aten_.graph();
  std::vector<bool> used(old.values.size());
  ForEachOperand(*ir, [&](Operand& operand) {
    if (operand.kind == Operand::Kind::kValue) used[operand.value.raw()] = true;
  });
  std::vector<bool> keep(old.nodes.size());
  for (size_t i = old.nodes.size(); i-- > 0;) {
    const Node& node = old.nodes[i];
    bool needed = !node.is_scalar() || IsAssumption(node.scalar_op) || MayRaise(node.scalar_op);
    for (ValueId out : node.outputs) needed = needed || used[out.raw()];
    keep[i] = needed;
    if (needed) ForEachUse(node.args, [&](ValueId use) { used[use.raw()] = true; });
  }
  for (const auto& [source, input] : aten_.inputs()) {
    if (!used[input.raw()]) continue;
    const bool is_tensor = old.value(input).type.kind == Type::Kind::kTensor;  // a write to an array ends the graph
    if (is_tensor && aten_.writes_to_input(input)) {
      segment->written_inputs.push_back(static_cast<uint32_t>(segment->input_sources.size()));
    }
    segment->input_sources.push_back(source);
  }
  segment->node_places.reserve(old.nodes.size());
  for (size_t i = 0; i < old.nodes.size(); ++i) {
    if (keep[i]) segment->node_places.push_back(aten_.places()[i]);
  }
  std::vector<ValueId> now;
  Graph graph = PartOf(std::move(old), used, keep, &now);
  std::vector<bool> is_output(graph.values.size());
  ForEachOperand(*ir, [&](Operand& operand) {
    if (operand.kind != Operand::Kind::kValue) return;
    operand.value = now[operand.value.raw()];
    if (!is_output[operand.value.raw()]) graph.outputs.push_back(operand.value);
    is_output[operand.value.raw()] = true;
  });
  ir->graph = std::move(graph);
}

// A variable that the trace sets must not be, at replay, another one that it read: of a function that is not fixed, the
// cells are not either.
void Recorder::GuardAgainstSharedCells(size_t kept) {
  if (!has_open_cells_) return;
  for (const PendingEffect& effect : effects_) {
    PyObject* set = effect.target.get();
    const SourceId target = effect.kind == Effect::Kind::kSetCell ? SourceOf(set) : SourceId();
    if (!target.valid() || target.raw() >= kept) continue;
    for (const auto& [cell, fixed] : fixed_cells_) {
      const SourceId function = SourceOf(fixed.function);
      if (function.valid() && function.raw() >= kept) continue;  // met in the part that was cut away
      guards_.SameObject(target, ClosureCell(SourceOrPin(fixed.function), fixed.function, fixed.index), cell == set,
                         Here());
    }
    std::vector<SourceId> others;
    objects_.ForEach([&](PyObject* object, const Known& known) {
      if (object == set || !PyCell_Check(object) || known.state != Known::State::kSource) return;
      if (known.source.raw() < kept) others.push_back(known.source);
    });
    std::sort(others.begin(), others.end());
    for (int i = 0; i < base().nlocalsplus; ++i) {
      PyObject* own = base().objects[i];
      const bool is_cell = own != nullptr && own != set && KindOfSlot(base().code, i) != SlotKind::kLocal;
      if (is_cell && PyCell_Check(own) && Find(own) == nullptr) others.push_back(CellSource(base(), i));
    }
    for (const SourceId other : others) guards_.SameObject(target, other, false, Here());
  }
}

// A container that the trace changes must not be, at replay, another one that it only read.
void Recorder::GuardAgainstAliases() {
  if (mutated_sources_.empty() && effects_.empty()) return;
  const size_t kept =
      guards_.mark().sources;  // what was met first in the part that was cut away has no source any more
  std::vector<std::pair<SourceId, PyObject*>> read;
  objects_.ForEach([&](PyObject* object, const Known& known) {
    if (known.state != Known::State::kSource || known.source.raw() >= kept) return;
    if (known.touched || known.adopted) read.emplace_back(known.source, object);
  });
  std::sort(read.begin(), read.end());  // the table is in the order of addresses
  for (PyObject* mutated : mutated_sources_) {
    Known* target = Find(mutated);
    if (target->source.raw() >= kept) continue;
    for (const auto& [source, object] : read) {
      if (object == mutated || Py_TYPE(object) != Py_TYPE(mutated)) continue;
      if (Find(object)->pinned && target->pinned) continue;
      guards_.SameObject(target->source, source, false, Here());
    }
  }
  GuardAgainstSharedCells(kept);
  // A dict that it read from, by itself or by an iterator, must not be the dict of an object or a module to which it
  // writes.
  const auto is_open = [this](SourceId source) {
    const Accessor accessor = guards_.accessor(source);
    return accessor == Accessor::kLocal || accessor == Accessor::kCell || accessor == Accessor::kStack ||
           accessor == Accessor::kOver;
  };
  for (const PendingEffect& effect : effects_) {
    const bool is_attribute = effect.kind == Effect::Kind::kSetAttr || effect.kind == Effect::Kind::kDelAttr;
    if (!is_attribute && effect.kind != Effect::Kind::kSetGlobal) continue;
    PyObject* target = effect.target.get();
    PyObject** own = is_attribute ? _PyObject_GetDictPtr(target) : &target;
    const SourceId owner = is_attribute ? SourceOf(target) : SourceId();
    if (own == nullptr || *own == nullptr || (is_attribute && (!owner.valid() || owner.raw() >= kept))) continue;
    for (const auto& [source, object] : read) {
      if (!PyDict_Check(object) || object == *own || !is_open(source)) continue;
      const SourceId written =
          is_attribute ? guards_.Child(owner, Accessor::kDict, 0, nullptr, *own) : guards_.Pinned(target, "G");
      guards_.SameObject(written, source, false, Here());
    }
  }
}

void Recorder::FixInputSizes(const SegmentIr& ir) {
  FixMarkedSizes();
  Assumptions wanted = store_.backend().assumptions();
  bool sizes = wanted.static_sizes || store_.options().dynamic == Dynamic::kNever;
  if (!sizes && !wanted.static_strides) return;
  TensorRead read;
  read.sizes = true;
  read.strides = wanted.static_strides;
  for (const auto& [source, value] : aten_.inputs()) {
    const Type::Kind kind = aten_.graph().value(value).type.kind;
    if (LeavesInputOpen(source) || kind == Type::Kind::kOpaque) continue;
    if (kind == Type::Kind::kTensor) {
      guards_.Tensor(source, read, Here());
    } else {
      guards_.Value(source, Here());
    }
  }
}

void Recorder::FixMarkedSizes() {
  if (store_.options().dynamic == Dynamic::kNever) return;
  for (const auto& [source, value] : aten_.inputs()) {
    PyObject* const tensor = guards_.seen(source);
    if (tensor == nullptr || !IsTensor(tensor) || !HasSizeMarks(tensor)) continue;
    for (int64_t dim = 0; dim < TensorOf(tensor).dim(); ++dim) {
      const auto mark = SizeMarkOf(tensor, dim);
      if (!mark || !mark->is_static) continue;
      TensorRead read;
      read.dims = dim < 64 ? uint64_t{1} << dim : 0;
      guards_.Tensor(source, read, Here());
    }
  }
}

// For a backend that takes sizes as constants unless it is asked to leave them open. Sizes of parameters belong to the
// module.
bool Recorder::LeavesInputOpen(SourceId source) const {
  if (!numbers_open() || !store_.backend().assumptions().static_sizes || guards_.IsFixed(source)) return false;
  if (open_ == Open::kChanging) return store_.IsChanging(guards_.Name(source));
  return guards_.accessor(source) != Accessor::kModuleAttr;
}

void Recorder::DescribeExamples(Segment* segment) const {
  Examples& examples = segment->examples;
  const std::vector<SourceId>& sources = segment->input_sources;
  examples.values.reserve(sources.size());
  for (size_t i = 0; i < sources.size(); ++i) {
    PyObject* const seen = guards_.seen(sources[i]);
    examples.values.push_back(seen != nullptr ? ExampleOf(seen) : c10::IValue(guards_.SeenNumber(sources[i])));
    if (examples.values.back().isTensor()) {
      const at::Tensor before = aten_.AsAtEntry(examples.values.back().toTensor());
      examples.values.back() = first_values_ != nullptr ? first_values_->Of(before) : before;
    }
    if (!numbers_open() || !store_.backend().assumptions().static_sizes) continue;
    examples.open.push_back(LeavesInputOpen(sources[i]));
    const auto tensor = std::find(sources.begin(), sources.end(), guards_.parent(sources[i]));
    if (guards_.accessor(sources[i]) == Accessor::kSize && tensor != sources.end()) {
      examples.sizes.push_back({i, static_cast<size_t>(tensor - sources.begin()), guards_.Describe(sources[i]).index});
    }
  }
}

std::shared_ptr<Segment> Recorder::Freeze(std::shared_ptr<Segment> segment) {
  SegmentIr& ir = segment->ir;
  FixInputSizes(ir);
  GuardAgainstAliases();
  DescribeDecisions(segment.get());
  segment->restartable = !aten_.writes_inputs() && !aten_.uses_random();
  if (!segment->restartable) segment->errors_are_seen = entry_is_handled_ || ErrorsAreSeen();
  Compact(segment.get());
  // Unused labels are noise.
  std::vector<bool> referred(static_cast<size_t>(next_label_));
  ForEachOperand(ir, [&](Operand& o) {
    if (o.kind == Operand::Kind::kShared) referred[static_cast<size_t>(o.index)] = true;
  });
  ForEachOperand(ir, [&](Operand& o) {
    if (o.label >= 0 && !referred[static_cast<size_t>(o.label)]) o.label = -1;
  });
  segment->weights.reserve(segment->input_sources.size());
  for (const SourceId source : segment->input_sources) {
    PyObject* seen = guards_.seen(source);
    bool is_weight = seen != nullptr && IsTensor(seen) &&
                     (guards_.accessor(source) == Accessor::kModuleAttr ||
                      (pinned_[source.raw()] && PyObject_TypeCheck(seen, Objects().parameter)));
    segment->weights.push_back(is_weight ? WeakTensor(TensorOf(seen)) : WeakTensor());
  }
  if (store_.backend().reads_examples() || !segment->restartable) DescribeExamples(segment.get());
  std::vector<SourceId> wanted = segment->input_sources;
  absl::flat_hash_set<SourceId> met;
  ForEachOperand(ir, [&](Operand& o) {
    if (o.kind == Operand::Kind::kSource && met.insert(o.source).second) segment->operand_sources.push_back(o.source);
  });
  // Where the trace has let go of an object whose end runs code, the segment ends: a replay keeps it until there.
  for (const auto& [object, count] : watched_) {
    const SourceId source = SourceOf(object);
    const bool is_known = source.valid() && source.raw() < guards_.mark().sources;
    if (is_known && met.insert(source).second) segment->operand_sources.push_back(source);
  }
  wanted.insert(wanted.end(), ir.decisions.sources.begin(), ir.decisions.sources.end());
  wanted.insert(wanted.end(), segment->operand_sources.begin(), segment->operand_sources.end());
  ir.function = entry_function_;
  ir.entry = entry_text_;
  ir.state = guards_.StateLines();
  NamePaths();
  segment->guards = PlantTree(guards_.Freeze(wanted));
  segment->constants = std::move(constants_);
  places_.Keep();
  segment->places = std::move(places_);
  for (const Effect& effect : ir.effects) {
    segment->effect_names.push_back(Must(PyUnicode_InternFromString(effect.name.c_str())));
  }
  segment->uses_random = aten_.uses_random() && !kernels_.empty();  // their nodes do not say so
  segment->kernels = std::move(kernels_);
  if (!segment->restartable) DescribeChanges(*segment, aten_.written_storages());
  segment->ops_met = aten_.ops_met();
  segment->code = entry_code_;
  segment->globals = entry_globals_;
  segment->callers = callers_;
  return segment;
}

std::shared_ptr<Segment> Recorder::FinishReturn(PyObject* value, Shadow shadow, Break* why) {
  aten_.Stop();
  if (aten_.pending) {
    *why = *aten_.pending;
    return nullptr;
  }
  auto segment = std::make_shared<Segment>();
  try {
    for (const auto& [object, count] : watched_) {
      // A replay makes no generator whose blocks could be left at the return.
      const Known* known = IsGenerator(object) && EndRunsCodeNow(object) ? Find(object) : nullptr;
      if (known != nullptr && known->state != Known::State::kSource) throw Break{Reason::generator_dropped, ""};
    }
    segment->ir.exit.kind = Exit::Kind::kReturn;
    segment->ir.exit.at = PositionOf(base().code, base().offset);
    DescribeEffects(&segment->ir);
    DescribeYields(&segment->ir);
    DescribeState(&segment->ir);
    segment->ir.exit.result = Describe(value, shadow);
    return Freeze(std::move(segment));
  } catch (const Break& b) {
    *why = b;
    return nullptr;
  }
}

std::shared_ptr<Segment> Recorder::FinishBreak(const Break& reason, Break* why) {
  aten_.Stop();
  ends_with_break_ = true;
  const Position at = BreakPosition();
  // As far inside as frames can be rebuilt and what is in them can be described.
  for (size_t i = frames_.size(); i-- > 0;) {
    const FrameNote& note = NoteOf(*frames_[i]);
    if (i > 0 && !(note.rebuildable && note.marked)) continue;
    frames_.resize(i + 1);
    mark_ = note.mark;
    // Objects first seen in the part that is cut away must not have another owner.
    absl::erase_if(watched_, [this](const auto& one) {
      const SourceId source = SourceOf(one.first);
      return !source.valid() || source.raw() >= mark_.guards.sources;
    });
    aten_.Rewind(mark_.aten);
    sizes_read_.clear();
    strides_read_.clear();
    guards_.Rewind(mark_.guards);
    effects_.resize(mark_.effects);
    decisions_.resize(mark_.decisions);
    labels_.clear();
    labelled_.clear();
    auto segment = std::make_shared<Segment>();
    Exit& exit = segment->ir.exit;
    exit.kind = Exit::Kind::kResume;
    exit.at = at;
    exit.reason = RowOf(reason.reason).name;
    exit.detail = reason.detail;
    try {
      // A replay makes no generator: blocks that were entered before the cut would not be left.
      if (dropped_generator_ != 0 && dropped_generator_ < mark_.epoch) throw Break{Reason::generator_dropped, ""};
      DescribeEffects(&segment->ir);
      DescribeYields(&segment->ir);
      DescribeState(&segment->ir);
      for (FrameState* f : frames_) {
        exit.frames.push_back(DescribeFrame(*f, NoteOf(*f).mark));
        segment->frame_codes.push_back(Ref<>::New(reinterpret_cast<PyObject*>(f->code)));
      }
      return Freeze(std::move(segment));
    } catch (const Break& b) {
      *why = b;
    }
  }
  return nullptr;
}

}  // namespace frametap
