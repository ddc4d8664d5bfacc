#include "frame_eval/session/self_check.h"

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "frame_eval/checks/fault_observer.h"
#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/cpython/signals.h"
#include "frame_eval/record/recorder.h"
#include "frame_eval/replay/reify.h"
#include "frame_eval/replay/run_graph.h"
#include "guards/objects/tensor_door.h"
#include "guards/objects/value.h"
#include "ir/graph/eager_state.h"
#include "ir/graph/scalar.h"

namespace frametap {

bool self_check::on = [] {
  const char* text = std::getenv("FRAMETAP_SELF_CHECK");
  if (text != nullptr) return std::strcmp(text, "0") != 0;
#ifdef FRAMETAP_SELF_CHECK
  return true;
#else
  return false;
#endif
}();

namespace {

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

}  // namespace

Verdict Fits(Segment& segment, const Roots& roots) {
  if (reinterpret_cast<PyFunctionObject*>(roots.function)->func_globals != segment.globals.get()) return Verdict::kMiss;
  if (segment.refuted || !AreAsTheyWere(segment.kernels)) return Verdict::kMiss;
  const Verdict verdict = segment.guards->Check(roots);
  if (SelfChecking()) [[unlikely]] {
    AllocZone outside(false);
    SignalsHeld held;  // words of objects are made: a handler's exception would be lost in them
    const std::string fault = segment.guards->Recheck(roots, verdict);
    // Where a guard finds no memory (for the wrapper of a gradient, say) it is a miss, and the second look finds no reason.
    const bool lacked_memory =
        !fault.empty() && verdict == Verdict::kMiss && segment.guards->Check(roots) == Verdict::kHit;
    if (!fault.empty() && !lacked_memory) {
      PyErr_Format(PyExc_SystemError, "frametap self-check: guards of %s: %s", segment.ir.name.c_str(), fault.c_str());
      return Verdict::kError;
    }
  }
  if (verdict != Verdict::kHit) return Verdict::kMiss;
  if (fault_observer != nullptr && fault_observer->MakesMiss()) [[unlikely]]
    return Verdict::kMiss;
  return DecisionsHold(segment, nullptr) ? Verdict::kHit : Verdict::kMiss;
}

void Recorder::KeepEntry(const FrameState& f) {
  EntryState& entry = entry_.emplace_back();
  for (int i = 0; i < f.nlocalsplus + f.depth; ++i) entry.objects.push_back(Ref<>::New(f.objects[i]));
  entry.nlocalsplus = f.nlocalsplus;
  entry.function = Ref<>::New(reinterpret_cast<PyObject*>(f.function));
}

std::string Recorder::FaultIn(const FrameState& f) {
  AllocZone outside(false);
  ErrScope keep;
  // A pending break ends the recording before anything can rely on it.
  if (aten_.pending) return "";
  // C code may switch it for the frames that it calls (autograd, around `forward`), and an exit rebuilds none of these.
  if (is_base(f) && (!(CurrentEagerState() == state_now_) || WorldState::BackendsNow() != backends_now_)) {
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
      shadow = cells_[shadow.id];
      if (object == nullptr) continue;
    }
    std::string fault = FaultOf(object, shadow);
    if (fault.empty() && PyCell_Check(object) && PyCell_GET(object) != nullptr) {
      const Known* cell = Find(object);
      if (cell != nullptr && !cell->items.empty()) fault = FaultOf(PyCell_GET(object), cell->items[0]);
    }
    if (fault.empty()) continue;
    const std::string place =
        is_local ? PyUnicode_AsUTF8(SlotName(f.code, i)) : "stack " + std::to_string(i - f.nlocalsplus);
    return place + ": " + fault;
  }
  return "";
}

// The recorder's answer to an attribute read, beside the object's own answer.
std::string Recorder::FaultOfAnswer(const FrameState& f, const Event& e) const {
  if (f.answer == nullptr || e.name == nullptr) return "";
  AllocZone outside(false);
  ErrScope keep;
  const Ref<> value = Ref<>::Steal(PyObject_GetAttr(e.in[0], e.name));
  if (value.get() == f.answer) return "";
  return std::string("the attribute ") + PyUnicode_AsUTF8(e.name) + " is another object";
}

std::string Recorder::FaultOf(PyObject* object, Shadow shadow) {
  if (shadow.kind == Shadow::Kind::kValue) return FaultOfNumber(object, ValueId(shadow.id));
  if (shadow.kind == Shadow::Kind::kSource) return FaultOfSource(object, SourceId(shadow.id));
  if (IsScalar(object)) return "";
  if (IsTensor(object)) return FaultOfTensor(object);
  const Known* known = Find(object);
  if (known == nullptr) return "";
  if (known->state == Known::State::kSource) {
    const std::string fault = FaultOfSource(object, known->source);
    if (!fault.empty()) return fault;
  }
  return FaultOfItems(object, *known);
}

std::string Recorder::FaultOfItems(PyObject* row, const Known& known) {
  constexpr size_t kMostItems = 64;  // this is asked at every instruction
  if (PyDict_CheckExact(row) && known.changes && known.state != Known::State::kSource) {
    for (const auto& [key, shadow] : known.changes->stored) {
      PyObject* const value = PyDict_GetItemWithError(row, key);
      const std::string fault = value == nullptr ? "nothing" : FaultOf(value, shadow);
      if (!fault.empty()) return "under a key of a dict: " + fault;
    }
    return "";
  }
  const size_t size = known.items.size();
  if (size == 0 || !(PyTuple_Check(row) || PyList_Check(row))) return "";
  if (static_cast<Py_ssize_t>(size) != PySequence_Fast_GET_SIZE(row)) return "a tuple or list of another length";
  for (size_t i = 0; i < std::min(size, kMostItems); ++i) {
    if (known.items[i].kind == Shadow::Kind::kNone) continue;
    const std::string fault = FaultOf(PySequence_Fast_GET_ITEM(row, static_cast<Py_ssize_t>(i)), known.items[i]);
    if (!fault.empty()) return "[" + std::to_string(i) + "] " + fault;
  }
  return "";
}

std::string Recorder::FaultOfSource(PyObject* object, SourceId source) {
  if (!source.valid() || source.raw() >= guards_.mark().sources) return "its source does not exist";
  PyObject* seen = guards_.seen(source);
  const bool same = seen == object || seen == nullptr || (IsScalar(object) && SameValue(seen, object));
  if (!same) return guards_.Name(source) + " was another object";
  // An object that the trace has changed is not at the entry's place any more.
  const bool was_resumed = guards_.parent(source).valid() && IsOutsideGenerator(guards_.seen(guards_.parent(source)));
  if (!effects_.empty() || IsContextSet() || was_resumed) return "";
  return guards_.FaultAt(source);
}

std::string Recorder::FaultOfTensor(PyObject* object) {
  const at::Tensor& tensor = TensorOf(object);
  AtenRecorder::KnownTensor* known = aten_.Find(tensor);
  if (known == nullptr) return "a tensor from nowhere";
  if (known->source.valid()) {
    PyObject* seen = known->source.raw() < guards_.mark().sources ? guards_.seen(known->source) : nullptr;
    if (seen == nullptr || !IsTensor(seen) || !TensorOf(seen).is_same(tensor)) {
      return "its source does not lead to it";
    }
  }
  if (!known->value.valid()) return "";
  if (known->value.raw() >= aten_.graph().values.size()) return "its graph value does not exist";
  const Type& type = aten_.graph().value(known->value).type;
  const Type real = Type::Of(tensor);
  return type == real ? "" : "the graph has " + ToString(type) + ", the frame " + ToString(real);
}

std::string Recorder::FaultOfNumber(PyObject* object, ValueId value) {
  if (!value.valid() || value.raw() >= aten_.graph().values.size()) return "its graph value does not exist";
  const c10::IValue number = NumberAt(value);
  return number.isNone() || SameNumber(object, number) ? "" : "the graph has another number, or one of another type";
}

// None where a number is not computed by scalar ops alone, or is too large for a graph.
c10::IValue Recorder::NumberAt(ValueId value) {
  if (auto it = numbers_.find(value.raw()); it != numbers_.end()) return it->second;
  c10::IValue number;
  const NodeId def = aten_.graph().value(value).def;
  if (auto it = number_inputs_.find(value.raw()); it != number_inputs_.end()) {
    PyObject* seen = guards_.seen(it->second);
    if (frametap::IsNumber(guards_.accessor(it->second))) number = guards_.SeenNumber(it->second);
    if (seen != nullptr && PyFloat_Check(seen)) number = PyFloat_AS_DOUBLE(seen);
    if (seen != nullptr && PyLong_Check(seen)) {
      int overflow = 0;
      const int64_t integer = PyLong_AsLongLongAndOverflow(seen, &overflow);
      if (overflow == 0) number = integer;
    }
  } else if (def.valid() && aten_.graph().node(def).is_scalar()) {
    const Node& node = aten_.graph().node(def);
    if (node.scalar_op == ScalarOp::kSize) {
      const Type& type = aten_.graph().value(node.args[0].value).type;
      return number = type.sizes[static_cast<size_t>(node.args[1].constant.toInt())];
    }
    c10::IValue operands[2];
    bool known = node.args.size() <= 2;
    for (size_t i = 0; known && i < node.args.size(); ++i) {
      const Arg& arg = node.args[i];
      operands[i] = arg.kind == Arg::Kind::kValue ? NumberAt(arg.value) : arg.constant;
      known = operands[i].isScalar();
    }
    try {
      if (known) number = Evaluate(node.scalar_op, operands[0], operands[1]);
    } catch (const std::exception&) {  // no graph value either: replay restarts in Python
    }
  }
  numbers_[value.raw()] = number;
  return number;
}

std::string Recorder::MisfitOf(Segment& segment) {
  AllocZone outside(false);
  const bool changed_nothing = !entry_.empty() && effects_.empty() && mutated_sources_.empty() && base_cells_.empty() &&
                               !aten_.writes_inputs() && CurrentEagerState() == entry_state_;
  if (!changed_nothing) return "";
  std::vector<std::vector<PyObject*>> objects(entry_.size());
  std::vector<Roots> chain(entry_.size());
  for (size_t i = 0; i < entry_.size(); ++i) {
    for (const Ref<>& object : entry_[i].objects) objects[i].push_back(object.get());
    chain[i].localsplus = objects[i].data();
    chain[i].nlocalsplus = entry_[i].nlocalsplus;
    chain[i].stack = objects[i].data() + entry_[i].nlocalsplus;
    chain[i].depth = static_cast<int>(objects[i].size()) - entry_[i].nlocalsplus;
    chain[i].function = entry_[i].function.get();
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
