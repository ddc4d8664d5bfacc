#include "frame_eval/record/finish/freeze.h"

#include <algorithm>
#include <functional>

#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/record/finish/describe.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/objects/variables.h"
#include "frame_eval/record/semantics/generators.h"
#include "frame_eval/record/sites.h"
#include "frame_eval/record/tensor_branch_guards.h"
#include "frame_eval/segment/changes.h"
#include "guards/collect/frozen_guards.h"
#include "guards/kinds/own_dict.h"
#include "guards/objects/object_end.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/well_known_objects.h"
#include "guards/throw_if_null.h"
#include "ir/graph/builtin_op.h"
#include "ir/ops/op_facts.h"

namespace frametap {

static void FixMarkedSizes(Trace& trace);
static bool LeavesInputOpen(const Trace& trace, SourceId source);
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
// waits for it, or effects have come before it. Where an op on numbers fails, plain Python may still have a result.
static bool ErrorsAreSeen(const Trace& trace) {
  const Graph& graph = trace.aten.graph();
  bool changed = false, sizes_from_elements = false;
  size_t first_effect = PendingEffect::kSeenByNobody;
  for (const PendingEffect& effect : trace.effects.pending) first_effect = std::min(first_effect, effect.nodes_before);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    if (!node.op) {
      if (changed && (IsAssumption(node.builtin_op) || trace.aten.element_numbers.MayFail(node))) return true;
      continue;
    }
    const OpFacts& facts = FactsOf(*node.op);
    changed = changed || facts.changes_what_was();
    sizes_from_elements = sizes_from_elements || facts.data_dependent_size || facts.scalar_from_data;
    if (!changed || !(facts.raises_on_elements || sizes_from_elements)) continue;
    if (first_effect <= i) return true;
    if (trace.sites.places.IsHandled(trace.aten.places()[i])) return true;
  }
  return false;
}

// Unused number nodes, list items and inputs are removed, except nodes that refuse, raise or fail. Values are numbered
// again; the rest leaves the recorder.
static void Compact(Trace& trace, Segment* segment) {
  SegmentIr* const ir = &segment->ir;
  Graph& old = trace.aten.graph();
  std::vector<bool> used(old.values.size());
  ForEachOperand(*ir, [&](Operand& operand) {
    if (operand.kind == Operand::Kind::kValue) used[operand.value.raw()] = true;
  });
  std::vector<bool> keep(old.nodes.size());
  for (size_t i = old.nodes.size(); i-- > 0;) {
    const Node& node = old.nodes[i];
    bool needed = !node.is_scalar() || IsAssumption(node.builtin_op) || MayRaise(node.builtin_op) ||
                  trace.aten.element_numbers.MayFail(node);
    for (ValueId out : node.outputs) needed = needed || used[out.raw()];
    keep[i] = needed;
    if (needed) ForEachUse(node.args, [&](ValueId use) { used[use.raw()] = true; });
  }
  for (const auto& [source, input] : trace.aten.tensors.inputs()) {
    if (!used[input.raw()]) continue;
    const bool is_tensor = old.value(input).type.kind == Type::Kind::kTensor;  // a write to an array ends the graph
    if (is_tensor && trace.aten.memory.MayBeWritten(input)) {
      segment->written_inputs.push_back(static_cast<uint32_t>(segment->input_sources.size()));
    }
    segment->input_sources.push_back(source);
  }
  segment->node_places.reserve(old.nodes.size());
  for (size_t i = 0; i < old.nodes.size(); ++i) {
    if (keep[i]) segment->node_places.push_back(trace.aten.places()[i]);
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
  if (DescribedValues* const described = DescribedValues::current) {
    for (auto& [value, object] : described->objects) value = now[value.raw()];
  }
  ir->graph = std::move(graph);
}

// A variable that the trace sets must not be, at replay, another one that it read: of a function that is not fixed, the
// cells are not either.
static void GuardAgainstSharedCells(Trace& trace, size_t kept) {
  if (!trace.variables.has_open_cells) return;
  for (const PendingEffect& effect : trace.effects.pending) {
    PyObject* set = effect.target.get();
    const SourceId target = effect.kind == Effect::Kind::kSetCell ? SourceOf(trace, set) : SourceId();
    if (!target.valid() || target.raw() >= kept) continue;
    for (const auto& [cell, fixed] : trace.variables.fixed_cells) {
      const SourceId function = SourceOf(trace, fixed.function);
      if (function.valid() && function.raw() >= kept) continue;  // met in the part that was cut away
      trace.guards.SameObject(target,
                              ClosureCell(trace, SourceOrPin(trace, fixed.function), fixed.function, fixed.index),
                              cell == set, trace.frames.Here());
    }
    std::vector<SourceId> others;
    trace.objects.table.ForEach([&](PyObject* object, const ObjectRecord& known) {
      if (object == set || !PyCell_Check(object) || known.state != ObjectRecord::State::kSource) return;
      if (known.source.raw() < kept) others.push_back(known.source);
    });
    std::sort(others.begin(), others.end());
    for (int i = 0; i < trace.frames.base().nlocalsplus; ++i) {
      PyObject* own = trace.frames.base().objects[i];
      const bool is_cell = own != nullptr && own != set && KindOfSlot(trace.frames.base().code, i) != SlotKind::kLocal;
      if (is_cell && PyCell_Check(own) && trace.objects.Find(own) == nullptr)
        others.push_back(CellSource(trace, trace.frames.base(), i));
    }
    for (const SourceId other : others) trace.guards.SameObject(target, other, false, trace.frames.Here());
  }
}

// A tensor that is set must not be, at replay, another one of `uses`. Many of them are the parameters of a model, which are
// hardly ever exchanged: each is known by identity. Each guard on a tensor includes whether it is a parameter.
static void GuardAgainstShared(Trace& trace, size_t kept, std::vector<TensorValues::Use> uses) {
  constexpr size_t kMostPairs = 64;
  std::erase_if(uses, [kept](const auto& use) { return use.source.raw() >= kept; });
  const size_t sets = std::count_if(uses.begin(), uses.end(), [](const auto& use) { return use.set; });
  const auto is_parameter = [&trace](const auto& use) {
    return PyObject_TypeCheck(trace.guards.seen(use.source), Objects().parameter) != 0;
  };
  const bool knows_parameters = sets * uses.size() > kMostPairs;
  for (auto use = uses.begin(); use != uses.end(); ++use) {
    if (knows_parameters && is_parameter(*use)) {
      trace.guards.Identity(use->source, trace.frames.Here());
      continue;
    }
    for (auto other = uses.begin(); other != use; ++other) {
      if ((!use->set && !other->set) || is_parameter(*use) != is_parameter(*other)) continue;
      trace.guards.SameObject(use->source, other->source, false, trace.frames.Here());
    }
  }
}

// A tensor whose `grad` or `data` the trace sets must not be, at replay, another one whose `grad` or elements it uses.
static void GuardAgainstSharedTensors(Trace& trace, size_t kept) {
  const auto is_set = [&trace](const char* name) {
    return std::any_of(trace.effects.pending.begin(), trace.effects.pending.end(), [name](const PendingEffect& effect) {
      return effect.kind == Effect::Kind::kSetAttr && effect.name == name && IsTensor(effect.target.get());
    });
  };
  if (is_set("grad")) GuardAgainstShared(trace, kept, trace.aten.tensors.GradUses());
  if (is_set("data")) GuardAgainstShared(trace, kept, trace.aten.tensors.DataUses());
}

// A container that the trace changes must not be, at replay, another one that it only read.
static void GuardAgainstAliases(Trace& trace) {
  if (trace.objects.mutated_sources.empty() && trace.effects.pending.empty()) return;
  const size_t kept =
      trace.guards.mark().sources;  // what was met first in the part that was cut away has no source any more
  std::vector<std::pair<SourceId, PyObject*>> read;
  trace.objects.table.ForEach([&](PyObject* object, const ObjectRecord& known) {
    if (known.state != ObjectRecord::State::kSource || known.source.raw() >= kept) return;
    if (known.touched || known.adopted) read.emplace_back(known.source, object);
  });
  std::sort(read.begin(), read.end());  // the table is in the order of addresses
  for (PyObject* mutated : trace.objects.mutated_sources) {
    ObjectRecord* target = trace.objects.Find(mutated);
    if (target->source.raw() >= kept) continue;
    for (const auto& [source, object] : read) {
      if (object == mutated || Py_TYPE(object) != Py_TYPE(mutated)) continue;
      if (trace.objects.Find(object)->pinned && target->pinned) continue;
      trace.guards.SameObject(target->source, source, false, trace.frames.Here());
    }
  }
  GuardAgainstSharedCells(trace, kept);
  GuardAgainstSharedTensors(trace, kept);
  // A dict that it read from, by itself or by an iterator, must not be the dict of an object or a module to which it
  // writes.
  const auto is_open = [&trace](SourceId source) {
    const Accessor accessor = trace.guards.accessor(source);
    return accessor == Accessor::kLocal || accessor == Accessor::kCell || accessor == Accessor::kStack ||
           accessor == Accessor::kOver;
  };
  for (const PendingEffect& effect : trace.effects.pending) {
    const bool is_attribute = effect.kind == Effect::Kind::kSetAttr || effect.kind == Effect::Kind::kDelAttr;
    if (!is_attribute && effect.kind != Effect::Kind::kSetGlobal) continue;
    PyObject* target = effect.target.get();
    PyObject** own = is_attribute ? _PyObject_GetDictPtr(target) : &target;
    const SourceId owner = is_attribute ? SourceOf(trace, target) : SourceId();
    if (own == nullptr || *own == nullptr || (is_attribute && (!owner.valid() || owner.raw() >= kept))) continue;
    for (const auto& [source, object] : read) {
      if (!PyDict_Check(object) || object == *own || !is_open(source)) continue;
      // The object may get its dict by this very write.
      const SourceId written = is_attribute ? trace.guards.Child(owner, Accessor::kDict, kDictOrNone, nullptr, *own)
                                            : trace.guards.Pinned(target, "G");
      trace.guards.SameObject(written, source, false, trace.frames.Here());
    }
  }
}

static void FixInputSizes(Trace& trace, const SegmentIr& ir) {
  FixMarkedSizes(trace);
  Assumptions wanted = trace.store.backend().assumptions();
  bool sizes = wanted.static_sizes || trace.store.options().dynamic == Dynamic::kNever;
  if (!sizes && !wanted.static_strides) return;
  TensorRead read;
  read.sizes = true;
  read.strides = wanted.static_strides;
  for (const auto& [source, value] : trace.aten.tensors.inputs()) {
    const Type::Kind kind = trace.aten.graph().value(value).type.kind;
    if (LeavesInputOpen(trace, source) || kind == Type::Kind::kOpaque) continue;
    if (kind == Type::Kind::kTensor) {
      trace.guards.Tensor(source, read, trace.frames.Here());
    } else {
      trace.guards.Value(source, trace.frames.Here());
    }
  }
}

static void FixMarkedSizes(Trace& trace) {
  if (trace.store.options().dynamic == Dynamic::kNever) return;
  for (const auto& [source, value] : trace.aten.tensors.inputs()) {
    PyObject* const tensor = trace.guards.seen(source);
    if (tensor == nullptr || !IsTensor(tensor) || !HasSizeMarks(tensor)) continue;
    for (int64_t dim = 0; dim < TensorOf(tensor).dim(); ++dim) {
      const auto mark = SizeMarkOf(tensor, dim);
      if (!mark || !mark->is_static) continue;
      TensorRead read;
      read.dims = dim < 64 ? uint64_t{1} << dim : 0;
      trace.guards.Tensor(source, read, trace.frames.Here());
    }
  }
}

// For a backend that takes sizes as constants unless it is asked to leave them open. Sizes of parameters belong to the
// module.
static bool LeavesInputOpen(const Trace& trace, SourceId source) {
  if (!trace.numbers.any_open() || !trace.store.backend().assumptions().static_sizes || trace.guards.IsFixed(source))
    return false;
  if (trace.numbers.open == OpenNumbers::kChanging) return HasChanged(trace, source);
  return trace.guards.accessor(source) != Accessor::kModuleAttr;
}

static void DescribeExamples(const Trace& trace, Segment* segment) {
  Examples& examples = segment->examples;
  const std::vector<SourceId>& sources = segment->input_sources;
  examples.values.reserve(sources.size());
  for (size_t i = 0; i < sources.size(); ++i) {
    PyObject* const seen = trace.guards.seen(sources[i]);
    examples.values.push_back(seen != nullptr ? ExampleOf(seen) : c10::IValue(trace.guards.SeenNumber(sources[i])));
    if (examples.values.back().isTensor()) {
      const at::Tensor before = trace.aten.resized.AsAtEntry(examples.values.back().toTensor());
      const bool is_first = trace.store.backend().keeps_first_values();
      examples.values.back() = is_first ? trace.effects.first_values->Of(before) : before;
    }
    if (!trace.numbers.any_open() || !trace.store.backend().assumptions().static_sizes) continue;
    examples.open.push_back(LeavesInputOpen(trace, sources[i]));
    const auto tensor = std::find(sources.begin(), sources.end(), trace.guards.parent(sources[i]));
    if (trace.guards.accessor(sources[i]) == Accessor::kSize && tensor != sources.end()) {
      examples.sizes.push_back(
          {i, static_cast<size_t>(tensor - sources.begin()), trace.guards.Describe(sources[i]).index});
    }
  }
}

static bool KeepsRun(const Trace& trace) {
  return trace.store.options().answers_by_replay && !trace.store.backend().keeps_first_values();
}

static void DescribeRun(const Trace& trace, const Segment& segment, RecordedRun* run) {
  for (const c10::IValue& value : segment.examples.values) {
    run->now.push_back(value.isTensor() ? value.toTensor() : at::Tensor());
    run->inputs.push_back(value.isTensor() ? trace.effects.first_values->Of(value.toTensor()) : value);
  }
  run->objects = std::move(DescribedValues::current->objects);
  run->has_gone_on = run->has_gone_on || trace.aten.uses_random();
}

static Finished Freeze(Trace& trace, std::shared_ptr<Segment> segment, std::unique_ptr<RecordedRun> run) {
  SegmentIr& ir = segment->ir;
  FixInputSizes(trace, ir);
  GuardAgainstAliases(trace);
  DescribeDecisions(trace, segment.get());
  segment->restartable = !trace.aten.memory.writes_inputs() && !trace.aten.uses_random();
  if (!segment->restartable) segment->errors_are_seen = trace.entry.is_handled || ErrorsAreSeen(trace);
  Compact(trace, segment.get());
  // Unused labels are noise.
  std::vector<bool> referred(static_cast<size_t>(trace.operands.next_label));
  ForEachOperand(ir, [&](Operand& o) {
    if (o.kind == Operand::Kind::kShared) referred[static_cast<size_t>(o.index)] = true;
  });
  ForEachOperand(ir, [&](Operand& o) {
    if (o.label >= 0 && !referred[static_cast<size_t>(o.label)]) o.label = -1;
  });
  const auto has_data_set = [&trace](PyObject* tensor) {
    const KnownTensor* const known = trace.aten.tensors.Find(TensorOf(tensor));
    return known != nullptr && known->data_set;
  };
  segment->weights.reserve(segment->input_sources.size());
  for (const SourceId source : segment->input_sources) {
    PyObject* seen = trace.guards.seen(source);
    bool is_weight = seen != nullptr && IsTensor(seen) && !has_data_set(seen) &&
                     (trace.guards.accessor(source) == Accessor::kModuleAttr ||
                      (trace.objects.pinned[source.raw()] && PyObject_TypeCheck(seen, Objects().parameter)));
    segment->weights.push_back(is_weight ? WeakTensor(TensorOf(seen)) : WeakTensor());
  }
  if (trace.store.backend().reads_examples() || !segment->restartable || run != nullptr) {
    DescribeExamples(trace, segment.get());
  }
  if (run != nullptr) DescribeRun(trace, *segment, run.get());
  std::vector<SourceId> wanted = segment->input_sources;
  absl::flat_hash_set<SourceId> met;
  ForEachOperand(ir, [&](Operand& o) {
    if (o.kind == Operand::Kind::kSource && met.insert(o.source).second) segment->operand_sources.push_back(o.source);
  });
  // Where the trace has let go of an object whose end runs code, the segment ends: a replay keeps it until there.
  for (const auto& [object, count] : trace.lifetimes.watched) {
    const SourceId source = SourceOf(trace, object);
    const bool is_known = source.valid() && source.raw() < trace.guards.mark().sources;
    if (is_known && met.insert(source).second) segment->operand_sources.push_back(source);
  }
  wanted.insert(wanted.end(), ir.decisions.sources.begin(), ir.decisions.sources.end());
  wanted.insert(wanted.end(), segment->operand_sources.begin(), segment->operand_sources.end());
  ir.function = trace.entry.function;
  ir.entry = trace.entry.text;
  ir.state = trace.guards.StateFacts();
  NamePaths(trace);
  segment->guards = PlantTree(trace.guards.Freeze(wanted));
  segment->constants = std::move(trace.operands.constants);
  trace.sites.places.Keep();
  segment->places = std::move(trace.sites.places);
  for (const Effect& effect : ir.effects) {
    segment->effect_names.push_back(Must(PyUnicode_InternFromString(effect.name.c_str())));
  }
  segment->uses_random = trace.aten.uses_random() && !trace.kernels.empty();  // their nodes do not say so
  segment->kernels = std::move(trace.kernels);
  if (!segment->restartable) DescribeChanges(*segment, trace.aten.memory.storages());
  segment->ops_met = trace.aten.ops_met();
  segment->code = trace.entry.code;
  segment->globals = trace.entry.globals;
  segment->callers = trace.frames.callers;
  return {std::move(segment), std::move(run)};
}

Finished FinishReturn(Trace& trace, PyObject* value, Shadow shadow) {
  trace.aten.Stop();
  if (trace.aten.pending) throw Break(*trace.aten.pending);
  for (const auto& [object, count] : trace.lifetimes.watched) {
    // A replay makes no generator whose blocks could be left at the return.
    const ObjectRecord* known = IsGenerator(object) && EndRunsCodeNow(object) ? trace.objects.Find(object) : nullptr;
    if (known != nullptr && known->state != ObjectRecord::State::kSource) throw Break{Reason::generator_dropped, ""};
  }
  std::optional<DescribedValues> described;
  if (KeepsRun(trace)) described.emplace();
  auto segment = std::make_shared<Segment>();
  segment->ir.exit.kind = Exit::Kind::kReturn;
  segment->ir.exit.at = PositionOf(trace, trace.frames.base().code, trace.frames.base().offset);
  DescribeEffects(trace, &segment->ir);
  DescribeYields(trace, &segment->ir);
  DescribeState(trace, &segment->ir);
  segment->ir.exit.result = Describe(trace, value, shadow);
  return Freeze(trace, std::move(segment), described ? std::make_unique<RecordedRun>() : nullptr);
}

Finished FinishBreak(Trace& trace, const Break& reason) {
  trace.aten.Stop();
  trace.frames.ends_with_break = true;
  const Position at = BreakPosition(trace);
  const size_t ops_met = trace.aten.ops_met();
  std::optional<DescribedValues> described;
  std::optional<Break> why;
  // As far inside as frames can be rebuilt and what is in them can be described.
  for (size_t i = trace.frames.inlined.size(); i-- > 0;) {
    const FrameNote& note = NoteOf(*trace.frames.inlined[i]);
    if (i > 0 && !(note.rebuildable && note.marked)) continue;
    trace.frames.inlined.resize(i + 1);
    trace.frames.cut = note.mark;
    // Objects first seen in the part that is cut away must not have another owner.
    absl::erase_if(trace.lifetimes.watched, [&trace](const auto& one) {
      const SourceId source = SourceOf(trace, one.first);
      return !source.valid() || source.raw() >= trace.frames.cut.guards.sources;
    });
    Rewind(trace, trace.frames.cut);
    trace.operands.labels.clear();
    trace.operands.labelled.clear();
    described.reset();
    if (KeepsRun(trace)) described.emplace();
    auto segment = std::make_shared<Segment>();
    Exit& exit = segment->ir.exit;
    exit.kind = Exit::Kind::kResume;
    exit.at = at;
    exit.reason = reason.reason;
    exit.detail = reason.detail;
    try {
      // A replay makes no generator: blocks that were entered before the cut would not be left.
      if (trace.lifetimes.dropped_generator != 0 && trace.lifetimes.dropped_generator < trace.frames.cut.epoch)
        throw Break{Reason::generator_dropped, ""};
      DescribeEffects(trace, &segment->ir);
      DescribeYields(trace, &segment->ir);
      DescribeState(trace, &segment->ir);
      for (FrameState* f : trace.frames.inlined) {
        exit.frames.push_back(DescribeFrame(trace, *f, NoteOf(*f).mark));
        segment->frame_codes.push_back(Ref<>::New(reinterpret_cast<PyObject*>(f->code)));
      }
      auto run = described ? std::make_unique<RecordedRun>() : nullptr;
      if (run != nullptr) run->has_gone_on = trace.aten.ops_met() != ops_met;
      return Freeze(trace, std::move(segment), std::move(run));
    } catch (const Break& b) {
      why = b;
    }
  }
  throw *why;  // the entry frame was tried last
}

}  // namespace frametap
