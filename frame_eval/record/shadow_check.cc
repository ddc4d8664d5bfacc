#include "frame_eval/record/shadow_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "frame_eval/checks/fault_observer.h"
#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/semantics/generators.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/value.h"
#include "ir/graph/eager_state.h"

namespace frametap {

namespace {

std::string FaultOf(Trace& trace, PyObject* object, Shadow shadow);

// A number as Python and as the graph have it: equal bit by bit, for zeros have signs. A NaN is any NaN: the sign of a
// sum of two NaNs depends on the compiler's order of operands.
bool SameNumber(PyObject* object, const c10::IValue& number) {
  if (PyFloat_CheckExact(object) && number.isDouble()) {
    const double a = PyFloat_AS_DOUBLE(object), b = number.toDouble();
    return std::memcmp(&a, &b, sizeof a) == 0 || (std::isnan(a) && std::isnan(b));
  }
  int overflow = 0;
  if (PyBool_Check(object) && number.isBool()) return number.toBool() == (object == Py_True);
  return PyLong_CheckExact(object) && number.isInt() &&
         PyLong_AsLongLongAndOverflow(object, &overflow) == number.toInt() && overflow == 0;
}

std::string FaultOfItems(Trace& trace, PyObject* row, const ObjectRecord& known) {
  constexpr size_t kMostItems = 64;  // this is asked at every instruction
  if (PyDict_CheckExact(row) && known.changes && known.state != ObjectRecord::State::kSource) {
    for (const auto& [key, shadow] : known.changes->stored) {
      PyObject* const value = PyDict_GetItemWithError(row, key);
      const std::string fault = value == nullptr ? "nothing" : FaultOf(trace, value, shadow);
      if (!fault.empty()) return "under a key of a dict: " + fault;
    }
    return "";
  }
  const size_t size = known.items.size();
  if (size == 0 || !(PyTuple_Check(row) || PyList_Check(row))) return "";
  if (static_cast<Py_ssize_t>(size) != PySequence_Fast_GET_SIZE(row)) return "a tuple or list of another length";
  for (size_t i = 0; i < std::min(size, kMostItems); ++i) {
    if (known.items[i].kind == Shadow::Kind::kNone) continue;
    const std::string fault = FaultOf(trace, PySequence_Fast_GET_ITEM(row, static_cast<Py_ssize_t>(i)), known.items[i]);
    if (!fault.empty()) return "[" + std::to_string(i) + "] " + fault;
  }
  return "";
}

std::string FaultOfSource(Trace& trace, PyObject* object, SourceId source) {
  if (!source.valid() || source.raw() >= trace.guards.mark().sources) return "its source does not exist";
  PyObject* seen = trace.guards.seen(source);
  const bool same = seen == object || seen == nullptr || (IsScalar(object) && SameValue(seen, object));
  if (!same) return trace.guards.Name(source) + " was another object";
  // An object that the trace has changed is not at the entry's place any more.
  const bool was_resumed =
      trace.guards.parent(source).valid() && IsOutsideGenerator(trace, trace.guards.seen(trace.guards.parent(source)));
  if (!trace.effects.pending.empty() || trace.thread.IsContextSet() || was_resumed) return "";
  return trace.guards.FaultAt(source);
}

std::string FaultOfTensor(Trace& trace, PyObject* object) {
  const at::Tensor& tensor = TensorOf(object);
  KnownTensor* known = trace.aten.tensors.Find(tensor);
  if (known == nullptr) return "a tensor from nowhere";
  if (known->source.valid()) {
    PyObject* seen = known->source.raw() < trace.guards.mark().sources ? trace.guards.seen(known->source) : nullptr;
    if (seen == nullptr || !IsTensor(seen) || !TensorOf(seen).is_same(tensor)) {
      return "its source does not lead to it";
    }
  }
  if (!known->value.valid()) return "";
  if (known->value.raw() >= trace.aten.graph().values.size()) return "its graph value does not exist";
  const Type& type = trace.aten.graph().value(known->value).type;
  const Type real = Type::Of(tensor);
  return type == real ? "" : "the graph has " + ToString(type) + ", the frame " + ToString(real);
}

std::string FaultOfNumber(Trace& trace, PyObject* object, ValueId value) {
  if (!value.valid() || value.raw() >= trace.aten.graph().values.size()) return "its graph value does not exist";
  const c10::IValue number = NumberAt(trace, value);
  return number.isNone() || SameNumber(object, number) ? "" : "the graph has another number, or one of another type";
}

std::string FaultOf(Trace& trace, PyObject* object, Shadow shadow) {
  if (shadow.kind == Shadow::Kind::kValue) return FaultOfNumber(trace, object, ValueId(shadow.id));
  if (shadow.kind == Shadow::Kind::kSource) return FaultOfSource(trace, object, SourceId(shadow.id));
  if (IsScalar(object)) return "";
  if (IsTensor(object)) return FaultOfTensor(trace, object);
  const ObjectRecord* known = trace.objects.Find(object);
  if (known == nullptr) return "";
  if (known->state == ObjectRecord::State::kSource) {
    const std::string fault = FaultOfSource(trace, object, known->source);
    if (!fault.empty()) return fault;
  }
  return FaultOfItems(trace, object, *known);
}

}  // namespace

void KeepEntry(Trace& trace, const FrameState& f) {
  FrameAtEntry& entry = trace.frames.at_entry.emplace_back();
  for (int i = 0; i < f.nlocalsplus + f.depth; ++i) entry.objects.push_back(Ref<>::New(f.objects[i]));
  entry.nlocalsplus = f.nlocalsplus;
  entry.function = Ref<>::New(reinterpret_cast<PyObject*>(f.function));
}

std::string FaultIn(Trace& trace, const FrameState& f) {
  AllocZone outside(false);
  ErrScope keep;
  // A pending break ends the recording before anything can rely on it.
  if (trace.aten.pending) return "";
  // C code may switch it for the frames that it calls (autograd, around `forward`), and an exit rebuilds none of these.
  if (trace.frames.is_base(f) &&
      (!(CurrentEagerState() == trace.thread.state) || WorldState::BackendsNow() != trace.thread.backends)) {
    return "the state of the thread has changed unseen";
  }
  const std::vector<bool> live = LiveLocals(f.code, f.offset);
  for (int i = 0; i < f.nlocalsplus + f.depth; ++i) {
    PyObject* object = f.objects[i];
    const bool is_local = i < f.nlocalsplus;
    if (object == nullptr || (is_local && !live[static_cast<size_t>(i)])) continue;
    Shadow shadow = f.shadows[i];
    if (shadow.kind == Shadow::Kind::kCell) {
      if (!PyCell_Check(object)) return "there is no cell";
      object = PyCell_GET(object);
      shadow = trace.variables.cells[shadow.id];
      if (object == nullptr) continue;
    }
    std::string fault = FaultOf(trace, object, shadow);
    if (fault.empty() && PyCell_Check(object) && PyCell_GET(object) != nullptr) {
      const ObjectRecord* cell = trace.objects.Find(object);
      if (cell != nullptr && !cell->items.empty()) fault = FaultOf(trace, PyCell_GET(object), cell->items[0]);
    }
    if (fault.empty()) continue;
    const std::string place =
        is_local ? PyUnicode_AsUTF8(SlotName(f.code, i)) : "stack " + std::to_string(i - f.nlocalsplus);
    return place + ": " + fault;
  }
  return "";
}

std::string FaultOfAnswer(const FrameState& f, const Event& e) {
  if (f.answer == nullptr || e.name == nullptr) return "";
  AllocZone outside(false);
  ErrScope keep;
  const Ref<> value = Ref<>::Steal(PyObject_GetAttr(e.in[0], e.name));
  if (value.get() == f.answer) return "";
  return std::string("the attribute ") + PyUnicode_AsUTF8(e.name) + " is another object";
}

std::string CheckSegment(Trace& trace, Segment& segment) {
  AllocZone outside(false);
  const bool changed_nothing = !trace.frames.at_entry.empty() && trace.effects.pending.empty() &&
                               trace.objects.mutated_sources.empty() && trace.variables.base_cells.empty() &&
                               !trace.aten.memory.writes_inputs() && CurrentEagerState() == trace.entry.state &&
                               WorldState::BackendsNow() == trace.entry.backends;
  if (!changed_nothing) return "";
  std::vector<std::vector<PyObject*>> objects(trace.frames.at_entry.size());
  std::vector<Roots> chain(trace.frames.at_entry.size());
  for (size_t i = 0; i < trace.frames.at_entry.size(); ++i) {
    for (const Ref<>& object : trace.frames.at_entry[i].objects) objects[i].push_back(object.get());
    chain[i].localsplus = objects[i].data();
    chain[i].nlocalsplus = trace.frames.at_entry[i].nlocalsplus;
    chain[i].stack = objects[i].data() + trace.frames.at_entry[i].nlocalsplus;
    chain[i].depth = static_cast<int>(objects[i].size()) - trace.frames.at_entry[i].nlocalsplus;
    chain[i].function = trace.frames.at_entry[i].function.get();
    if (i > 0) chain[i - 1].caller = &chain[i];
  }
  const Roots& roots = chain[0];
  const Verdict verdict = segment.guards->Check(roots);
  const std::string fault = segment.guards->Recheck(roots, verdict);
  if (!fault.empty()) return fault;
  if (verdict == Verdict::kHit) return "";
  const MissReport miss = segment.guards->Explain(roots);
  return "the new segment does not fit its own call: " + miss.source + ": " + miss.why;
}

}  // namespace frametap
