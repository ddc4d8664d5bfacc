// Operators, comparisons, truth, subscripts: what each reads, fixes or writes, by the kind of its operands.
#include "frame_eval/known_objects.h"
#include "frame_eval/recorder.h"
#include "guards/dict_read.h"
#include "guards/must.h"
#include "guards/tensor_door.h"

namespace frametap {
namespace {

bool IsNumber(PyObject* object) { return PyLong_CheckExact(object) || PyFloat_CheckExact(object); }

constexpr int kNbAdd = 0, kNbMultiply = 5, kNbRemainder = 6, kNbSubtract = 10, kNbTrueDivide = 11, kInplaceFrom = 13;

// Whether `object[key]` is what it is for the builtin type: of a class in Python, too, that does not say otherwise
// (whose slot is always the one that looks a method up).
bool SubscriptedAs(PyObject* object, PyTypeObject* builtin) {
  PyTypeObject* type = Py_TYPE(object);
  if (!PyType_IsSubtype(type, builtin) || type->tp_as_mapping == nullptr) return false;
  if (type->tp_as_mapping->mp_subscript == builtin->tp_as_mapping->mp_subscript) return true;
  static PyObject* const name = InternedName("__getitem__");
  return (type->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0 && _PyType_Lookup(type, name) == _PyType_Lookup(builtin, name);
}

bool IsSequence(PyObject* object) {
  return PyTuple_Check(object) || PyList_Check(object) || PyDict_Check(object) || PyAnySet_Check(object);
}

}  // namespace

ScalarOp Recorder::NumberOp(const Event& e) const {
  if (e.op == Op::kUnary) {
    if (e.arg != 1) return ScalarOp::kNone;
    return PyFloat_CheckExact(e.in[0]) ? ScalarOp::kFloatNeg : ScalarOp::kIntNeg;
  }
  bool floats = PyFloat_CheckExact(e.in[0]) && PyFloat_CheckExact(e.in[1]);
  bool ints = PyLong_CheckExact(e.in[0]) && PyLong_CheckExact(e.in[1]);
  if (!floats && !ints) return ScalarOp::kNone;
  switch (e.arg % kInplaceFrom) {
    case kNbAdd:
      return floats ? ScalarOp::kFloatAdd : ScalarOp::kIntAdd;
    case kNbSubtract:
      return floats ? ScalarOp::kFloatSub : ScalarOp::kIntSub;
    case kNbMultiply:
      return floats ? ScalarOp::kFloatMul : ScalarOp::kIntMul;
    case kNbTrueDivide: {
      // A division that may raise is a decision.
      bool safe = floats && e.shadows[1].kind == Shadow::Kind::kNone && PyFloat_AS_DOUBLE(e.in[1]) != 0.0;
      return safe ? ScalarOp::kFloatDiv : ScalarOp::kNone;
    }
    default:
      return ScalarOp::kNone;
  }
}

// Arithmetic on numbers that are not fixed yet stays a computation of the graph: a counter does not fix its value.
bool Recorder::ScalarNode(FrameNote& note, const Event& e) {
  bool open = false;
  for (int i = 0; i < e.n; ++i) {
    if (!IsNumber(e.in[i])) return false;
    const Shadow& shadow = e.shadows[i];
    if (shadow.kind == Shadow::Kind::kNone) continue;
    // Sizes are fixed when they are computed with: a graph of sizes has no use before shapes are symbolic.
    if (shadow.kind == Shadow::Kind::kSource) {
      Accessor accessor = guards_.accessor(SourceId(shadow.id));
      if (accessor == Accessor::kSize || accessor == Accessor::kStride || accessor == Accessor::kLength) return false;
    }
    open = true;
  }
  if (!open) return false;
  ScalarOp op = NumberOp(e);
  if (op == ScalarOp::kNone) return false;
  std::vector<Arg> args;
  for (int i = 0; i < e.n; ++i) {
    PyObject* number = e.in[i];
    if (e.shadows[i].kind != Shadow::Kind::kNone) {
      args.push_back(Arg::Of(NumberValue(number, e.shadows[i])));
    } else if (PyFloat_CheckExact(number)) {
      args.push_back(Arg::Const(c10::IValue(PyFloat_AS_DOUBLE(number))));
    } else {
      int overflow = 0;
      int64_t value = PyLong_AsLongLongAndOverflow(number, &overflow);
      if (overflow != 0) return false;
      args.push_back(Arg::Const(c10::IValue(value)));
    }
  }
  Type::Kind kind = PyFloat_CheckExact(e.in[0]) ? Type::Kind::kFloat : Type::Kind::kInt;
  ValueId value = aten_.AddScalarNode(op, std::move(args), Type::Scalar(kind));
  note.expect.kind = Expect::Kind::kShadow;
  note.expect.shadow = Shadow{Shadow::Kind::kValue, value.raw()};
  return true;
}

void Recorder::BinaryNumbers(FrameNote& note, const Event& e) {
  PyObject* left = e.in[0];
  PyObject* right = e.in[1];
  if (IsTensor(left) || IsTensor(right)) {
    Call call{*frames_.back(), note, nullptr, {left, right}, {e.shadows[0], e.shadows[1]}, {}};
    return TorchCall(note, &call, "");
  }
  if (IsNumber(left) && IsNumber(right)) {
    if (ScalarNode(note, e)) return;
    return ForceAll(e);
  }
  ForceDeep(left, e.shadows[0], true);
  ForceDeep(right, e.shadows[1], true);
  if (PyUnicode_Check(left) && e.arg % kInplaceFrom == kNbRemainder) ReadPrinted(right, Printed::kStr);
  if (PyAnySet_Check(left) || PyDict_Check(left)) ReadElements({left, right});
  if (e.arg >= kInplaceFrom && (PyList_Check(left) || PyDict_Check(left) || PyAnySet_Check(left))) {
    Known* known = Find(left);
    if (known == nullptr || known->state == Known::State::kSource) {
      throw Break{Reason::unknown_mutation, "an in-place operator on a container that existed before"};
    }
    MarkMutated(left);
  }
}

void Recorder::CompareValues(FrameNote& note, PyObject* a, Shadow sa, PyObject* b, Shadow sb, int py_compare_op) {
  if (IsTensor(a) || IsTensor(b)) {
    Call call{*frames_.back(), note, nullptr, {a, b}, {sa, sb}, {}};
    return TorchCall(note, &call, "");
  }
  // A number against a constant: only the outcome is fixed.
  if (IsNumber(a) && IsNumber(b)) {
    static constexpr int kMirror[] = {Py_GT, Py_GE, Py_EQ, Py_NE, Py_LT, Py_LE};
    for (int side = 0; side < 2; ++side) {
      const Shadow& open = side == 0 ? sa : sb;
      const Shadow& other = side == 0 ? sb : sa;
      if (open.kind != Shadow::Kind::kSource || other.kind != Shadow::Kind::kNone) continue;
      int outcome = PyObject_RichCompareBool(a, b, py_compare_op);
      guards_.Relation(SourceId(open.id), side == 0 ? py_compare_op : kMirror[py_compare_op], side == 0 ? b : a,
                       outcome == 1, Here());
      return;
    }
  }
  ForceDeep(a, sa, false);
  ForceDeep(b, sb, false);
  ReadEqual(a, b);
}

void Recorder::CompareIdentity(PyObject* a, Shadow sa, PyObject* b, Shadow sb) {
  // `x is None` on a tensor or object argument: its guard (exact type) already says that it is not None.
  Force(a, sa);
  Force(b, sb);
  for (PyObject* object : {a, b}) {
    if (!IsTensor(object) && !IsScalar(object)) Touch(object);
  }
  if (IsScalar(a) && IsScalar(b)) return ReadSameScalar(a, sa, b, sb);
  ReadSame(a, b);
}

void Recorder::TruthOf(FrameNote& note, PyObject* object, Shadow shadow) {
  if (IsTensor(object)) {
    if (Decide(object)) return;
    throw Break{Reason::branch_on_tensor, ""};
  }
  if (shadow.kind == Shadow::Kind::kSource && IsNumber(object)) {
    static PyObject* zero = PyLong_FromLong(0);
    guards_.Relation(SourceId(shadow.id), Py_NE, zero, PyObject_IsTrue(object) == 1, Here());
    return;
  }
  Force(object, shadow);
  if (IsScalar(object)) return;
  if (IsForeign(object)) throw Break{Reason::unknown_operation, std::string("truth of ") + Py_TYPE(object)->tp_name};
  Known* known = Find(object);
  if (known != nullptr && known->state == Known::State::kSource && IsSequence(object) && !known->adopted) {
    Touch(object);
    if (!std::exchange(known->counted, true)) guards_.Length(known->source, Here());
    return;
  }
  Touch(object);
}

// Borrowed; null if there is none. What a guard cannot tell, because a key's own code would have to, ends the segment.
PyObject* Recorder::ItemAt(PyObject* dict, PyObject* key) {
  PyObject* value = nullptr;
  const Found found = DictGet(dict, Key::Of(key, dict), &value);
  if (found == Found::kDoubt)
    throw Break{Reason::unknown_operation, "a dict with keys that compare by code of their own"};
  return found == Found::kYes ? value : nullptr;
}

void Recorder::Contains(FrameNote& note, PyObject* container, PyObject* item) {
  if (IsTensor(container)) throw Break{Reason::value_of_tensor, "a test for membership"};
  Known* known = Find(container);
  bool is_source = known != nullptr && known->state == Known::State::kSource;
  if (PyDict_Check(container) && IsScalar(item) && is_source && !known->adopted) {
    Touch(container);
    if (ItemAt(container, item) != nullptr)
      guards_.Present(known->source, item, Here());
    else
      guards_.Absent(known->source, item, Here());
    return;
  }
  bool plain_class = PyType_Check(item) && Py_TYPE(item)->tp_hash == PyType_Type.tp_hash &&
                     Py_TYPE(item)->tp_richcompare == PyType_Type.tp_richcompare;
  if (PyAnySet_CheckExact(container) && is_source && !known->adopted && (IsScalar(item) || plain_class)) {
    Touch(container);
    if (plain_class) Touch(item);
    guards_.Member(known->source, item, Here());
    return;
  }
  if (!IsSequence(container)) {
    Touch(container);
    if (!IsScalar(item)) ForceDeep(item, Shadow(), false);
    return;
  }
  if (!IsScalar(item) && !IsTensor(item)) ForceDeep(item, Shadow(), false);
  if (PyTuple_Check(container) || PyList_Check(container)) {
    ForceDeep(container, Shadow(), true);
    return ReadSearch(container, item);
  }
  AdoptElements(container);
  ReadKey(container, item);
}

void Recorder::Subscript(FrameNote& note, PyObject* container, PyObject* key, Shadow key_shadow,
                         Shadow container_shadow) {
  Force(container, container_shadow);
  if (IsTensor(container)) {
    Call call{*frames_.back(), note, nullptr, {container, key}, {Shadow(), key_shadow}, {}};
    return TorchCall(note, &call, "");
  }
  ForceDeep(key, key_shadow, false);
  Known* known = Find(container);
  bool is_source = known != nullptr && known->state == Known::State::kSource;
  if (!SubscriptedAs(container, &PyDict_Type) && !SubscriptedAs(container, &PyList_Type) &&
      !SubscriptedAs(container, &PyTuple_Type)) {
    // A __getitem__ of its own: of Python it runs as a frame, of C it is unknown (torch.Size slices as a tuple does).
    Touch(container);
    if (PyTuple_Check(container))
      ForceDeep(container, Shadow(), true);
    else if (is_source && !(Py_TYPE(container)->tp_flags & Py_TPFLAGS_HEAPTYPE) && !PyType_Check(container) &&
             !PyRange_Check(container)) {
      throw Break{Reason::unknown_operation, std::string("an item of ") + Py_TYPE(container)->tp_name};
    }
    if (PyTuple_Check(container) && PyLong_CheckExact(key)) {
      Py_ssize_t index = PyLong_AsSsize_t(key);
      if (index < 0) index += PyTuple_GET_SIZE(container);
      Shadow shadow = ElementShadow(container, index);
      if (shadow.kind != Shadow::Kind::kNone) {
        note.expect.kind = Expect::Kind::kShadow;
        note.expect.shadow = shadow;
      }
    }
    return;
  }
  if (PyTuple_Check(container) || PyList_Check(container)) {
    Touch(container);
    AdoptElements(container);
    if (PyTuple_Check(container) && PyLong_CheckExact(key)) {
      Py_ssize_t index = PyLong_AsSsize_t(key);
      if (index == -1 && PyErr_Occurred()) PyErr_Clear();
      if (index < 0) index += PyTuple_GET_SIZE(container);
      Shadow shadow = ElementShadow(container, index);
      if (shadow.kind != Shadow::Kind::kNone) {
        note.expect.kind = Expect::Kind::kShadow;
        note.expect.shadow = shadow;
      }
    } else if (PyTuple_Check(container)) {
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(container); ++i) {
        Force(PyTuple_GET_ITEM(container, i), ElementShadow(container, i));
      }
    }
    return;
  }
  if (PyDict_Check(container) && !PyDict_CheckExact(container)) {
    // __missing__ in Python runs as a frame; that of a defaultdict stores what it makes.
    static PyObject* const missing_name = InternedName("__missing__");
    PyObject* missing = _PyType_Lookup(Py_TYPE(container), missing_name);
    if (missing != nullptr && !PyFunction_Check(missing)) {
      const bool present = PyDict_Contains(container, key) == 1;
      PyErr_Clear();
      if (!present && is_source) throw Break{Reason::unknown_mutation, Py_TYPE(container)->tp_name};
      if (!present) MarkMutated(container);
    }
  }
  if (PyDict_Check(container) && is_source && !known->adopted && IsScalar(key)) {
    Touch(container);
    if (Shadow* written = WrittenShadow(container, key)) {
      note.expect.kind = Expect::Kind::kShadow;
      note.expect.shadow = *written;
      return;
    }
    PyObject* value = ItemAt(container, key);
    if (value == nullptr) return guards_.Absent(known->source, key, Here());
    note.expect.kind = Expect::Kind::kSource;
    note.expect.source = guards_.Child(known->source, Accessor::kKey, 0, key, value);
    note.expect.pinned = known->pinned;
    return;
  }
  if (PyDict_Check(container)) {
    AdoptElements(container);
    return ReadKey(container, key);
  }
  Touch(container);
}

void Recorder::StoreSubscript(FrameNote& note, PyObject* container, PyObject* key, PyObject* value, Shadow key_shadow,
                              Shadow value_shadow) {
  if (IsTensor(container)) {
    Call call{*frames_.back(), note, nullptr, {container, key}, {Shadow(), key_shadow}, {}};
    if (value == nullptr) throw Break{Reason::unknown_operation, "an element of a tensor is deleted"};
    call.args.push_back(value);
    call.shadows.push_back(value_shadow);
    TorchCall(note, &call, "");
    note.expect.kind = Expect::Kind::kNothing;
    if (IsScalar(value)) aten_.expect_constant = true;  // the binding makes a tensor of the number
    return;
  }
  note.expect.kind = Expect::Kind::kNothing;
  ForceDeep(key, key_shadow, false);
  if (value != nullptr) Force(value, value_shadow);
  Known* known = Find(container);
  if (known == nullptr) {
    Touch(container);
    throw Break{Reason::unknown_mutation, Py_TYPE(container)->tp_name};
  }
  if (known->state != Known::State::kSource) {
    if (PyDict_Check(container)) ReadKey(container, key);
    return MarkMutated(container);
  }
  if (!PyDict_CheckExact(container) && !PyList_CheckExact(container)) {
    // A Python __setitem__ runs as a frame; one in C is unknown.
    Touch(container);
    if (PyDict_Check(container) || PyList_Check(container) || !(Py_TYPE(container)->tp_flags & Py_TPFLAGS_HEAPTYPE)) {
      throw Break{Reason::unknown_mutation, Py_TYPE(container)->tp_name};
    }
    return;
  }
  if (PySlice_Check(key)) throw Break{Reason::unknown_mutation, "a slice of a list that existed before is assigned"};
  Own(container);
  if (PyDict_Check(container)) ReadKey(container, key);
  if (value != nullptr) {
    AddEffect(Effect::Kind::kSetItem, container, "", {key, value}, {Shadow(), Shadow()});
  } else {
    AddEffect(Effect::Kind::kDelItem, container, "", {key}, {Shadow()});
  }
}

}  // namespace frametap
