#include "frame_eval/record/semantics/containers.h"

#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/numbers/sequences.h"
#include "frame_eval/record/numbers/symbolic_args.h"
#include "frame_eval/record/objects/class_references.h"
#include "frame_eval/record/objects/force.h"
#include "frame_eval/record/objects/identity.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/objects/open_keys.h"
#include "frame_eval/record/objects/outside_containers.h"
#include "frame_eval/record/objects/own_dicts.h"
#include "frame_eval/record/objects/quiet.h"
#include "frame_eval/record/objects/set_check.h"
#include "frame_eval/record/semantics/elements.h"
#include "frame_eval/record/semantics/foreign_operators.h"
#include "frame_eval/record/semantics/iterators.h"
#include "frame_eval/record/semantics/mapping_proxies.h"
#include "frame_eval/record/shared_breaks.h"
#include "frame_eval/record/tensor_branch_guards.h"
#include "guards/cpython/deque_view.h"
#include "guards/objects/dict_items.h"
#include "guards/objects/dict_read.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/value.h"
#include "guards/objects/well_known_objects.h"
#include "guards/throw_if_null.h"

namespace frametap {
namespace {

// Returns whether `object[key]` behaves as for the builtin type. This includes a class in Python that does not
// override it, whose slot always looks a method up.
bool SubscriptedAs(PyObject* object, PyTypeObject* builtin) {
  PyTypeObject* type = Py_TYPE(object);
  if (!PyType_IsSubtype(type, builtin) || type->tp_as_mapping == nullptr) return false;
  if (type->tp_as_mapping->mp_subscript == builtin->tp_as_mapping->mp_subscript) return true;
  static PyObject* const name = InternedName("__getitem__");
  return (type->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0 && _PyType_Lookup(type, name) == _PyType_Lookup(builtin, name);
}

bool IsSequence(PyObject* object) {
  return PyTuple_Check(object) || PyList_Check(object) || PyDict_Check(object) || IsAnySet(object) || IsDeque(object);
}

// The value that a defaultdict stores under a missing key: Python code returns it, or C code makes it, or there is an
// error.
bool MakesNewObjects(PyObject* dict) {
  if (!PyType_IsSubtype(Py_TYPE(dict), DefaultDict())) return false;
  const Ref<> factory = FactoryOf(dict);
  for (PyTypeObject* type : {&PyList_Type, &PyDict_Type, &PySet_Type, &PyLong_Type, &PyFloat_Type, &PyUnicode_Type,
                             &PyTuple_Type, &PyBool_Type}) {
    if (factory.get() == reinterpret_cast<PyObject*>(type)) return true;
  }
  return factory.get() == Py_None || PyFunction_Check(factory.get());
}

// Whether a tensor as a key is compared by its identity alone: in dicts whose look-up is C code. (An optimizer keeps its state
// under parameters.)
bool ComparesByIdentity(PyObject* container) {
  return PyDict_CheckExact(container) || PyODict_CheckExact(container) || Py_TYPE(container) == DefaultDict();
}

bool HasKeyItself(PyObject* dict, PyObject* object) {
  for (const auto [key, value] : DictItems(dict)) {
    if (key == object) return true;
  }
  return false;
}

}  // namespace

bool ReadKind(Trace& trace, PyObject* object) {
  if (!PyMethod_Check(object) && !PyFunction_Check(object) && !PyCFunction_Check(object) &&
      Py_TYPE(object) != Objects().partial) {
    return false;
  }
  const ObjectRecord* known = trace.objects.Find(object);
  if (known == nullptr || known->state != ObjectRecord::State::kSource || known->pinned) return false;
  if (!known->touched) trace.guards.Type(known->source, trace.frames.Here());
  return true;
}

void CompareIdentity(Trace& trace, PyObject* a, Shadow sa, PyObject* b, Shadow sb) {
  // `x is None` on a tensor or object argument: its guard (exact type) implies that it is not None. An int or float is
  // not None, whatever its value.
  for (auto [number, shadow, other, other_shadow] : {std::tuple(a, sa, b, sb), std::tuple(b, sb, a, sa)}) {
    if (other != Py_None || shadow.kind == Shadow::Kind::kNone || !IsNumber(number)) continue;
    Specialize(trace, other, other_shadow);
    return FixType(trace, shadow);
  }
  Specialize(trace, a, sa);
  Specialize(trace, b, sb);
  if ((a == Py_None && ReadKind(trace, b)) || (b == Py_None && ReadKind(trace, a))) return;
  for (PyObject* object : {a, b}) {
    if (!IsTensor(object) && !IsScalar(object)) GuardTypeOrIdentity(trace, object);
  }
  if (IsScalar(a) && IsScalar(b)) return ReadSameScalar(trace, a, sa, b, sb);
  ReadSame(trace, a, b);
}

void TruthOf(Trace& trace, FrameNote& note, PyObject* object, Shadow shadow) {
  if (IsTensor(object)) {
    if (GuardBranchOnTensor(trace, object)) return;
    throw Break{Reason::branch_on_tensor, ""};
  }
  if (shadow.kind != Shadow::Kind::kNone && IsNumber(object)) {
    static PyObject* const zero = Must(PyLong_FromLong(0)).Release();
    if (DecideNumbers(trace, object, shadow, zero, Shadow(), Py_NE, false)) return;
  }
  Specialize(trace, object, shadow);
  if (IsScalar(object) || ReadKind(trace, object)) return;
  if (PyObject* dict = DictBelow(trace, object)) return TruthOf(trace, note, dict, Shadow());
  if (IsForeign(trace, object))
    throw Break{Reason::unknown_operation, std::string("truth of ") + Py_TYPE(object)->tp_name};
  ObjectRecord* known = trace.objects.Find(object);
  if (known != nullptr && known->state == ObjectRecord::State::kSource && IsSequence(object) && !known->adopted) {
    GuardTypeOrIdentity(trace, object);
    if (HasAppended(trace, object)) return;
    if (const Shadow length = OpenLength(trace, object); length.kind != Shadow::Kind::kNone) {
      return TruthOf(trace, note, Must(PyLong_FromSsize_t(PyObject_Size(object))).get(), length);
    }
    if (known->changes || (known->mutated && IsDeque(object))) return AdoptElements(trace, object);
    if (!std::exchange(known->counted, true)) trace.guards.Length(known->source, trace.frames.Here());
    return;
  }
  GuardTypeOrIdentity(trace, object);
}

void Contains(Trace& trace, FrameNote& note, PyObject* container, PyObject* item) {
  if (IsTensor(container)) throw MembershipByElements();
  if (PyObject* dict = DictBelow(trace, container)) return Contains(trace, note, dict, item);
  if (!PyTuple_Check(container) && !PyList_Check(container)) RefuseNan(item);
  ObjectRecord* known = trace.objects.Find(container);
  bool is_source = known != nullptr && known->state == ObjectRecord::State::kSource;
  if (PyDict_Check(container) && is_source && !known->adopted && IsFollowedKey(trace, item)) {
    SpecializeDeep(trace, item, Shadow(), false);
    GuardTypeOrIdentity(trace, container);
    RefuseWrittenDict(trace, container);
    if (ItemQuietly(container, item) != nullptr)
      trace.guards.Present(known->source, item, trace.frames.Here());
    else
      trace.guards.Absent(known->source, item, trace.frames.Here());
    return;
  }
  const bool plain_class = IsPlainClass(item);
  if (PyAnySet_CheckExact(container) && is_source && !known->adopted && (IsScalar(item) || plain_class)) {
    if (const Py_hash_t hash = PyObject_Hash(item); hash == -1 || SetHas(container, item, hash) == Found::kDoubt) {
      PyErr_Clear();  // what cannot be hashed raises when the program asks
      throw Break{Reason::unknown_operation, "a set with elements that compare by code of their own"};
    }
    GuardTypeOrIdentity(trace, container);
    if (plain_class) GuardTypeOrIdentity(trace, item);
    trace.guards.Add(GuardKind::kMember, known->source, trace.frames.Here(), {.object = item});
    return;
  }
  if (PyAnySet_CheckExact(container) && is_source && !known->adopted && IsExactTensor(item)) {
    ReadsAddress(trace);
    ReadTensorAddress(trace, item);
    GuardTypeOrIdentity(trace, container);
    trace.guards.Add(GuardKind::kAddressInSet, known->source, trace.frames.Here(), {.object = item});
    return;
  }
  if (!IsSequence(container) || IsDeque(container)) {
    GuardTypeOrIdentity(trace, container);
    if (IsScalar(item)) return;
    SpecializeDeep(trace, item, Shadow(), false);
    if (PyDictKeys_Check(container)) return ReadKey(trace, DictOfView(container), item);
    static PyObject* const name = InternedName("__contains__");
    if (!IsScalar(container) && !HasMethodInPython(container, name)) ReadSearch(trace, container, item);
    return;
  }
  if (!IsScalar(item) && !IsTensor(item)) SpecializeDeep(trace, item, Shadow(), false);
  if (PyTuple_Check(container) || PyList_Check(container)) {
    SpecializeDeep(trace, container, Shadow(), true);
    return ReadSearch(trace, container, item);
  }
  AdoptElements(trace, container);
  ReadKey(trace, container, item);
}

// An element of a tuple or list, or several: what is not fixed of them stays so.
static void ItemOfRow(Trace& trace, FrameNote& note, PyObject* row, PyObject* key) {
  const ObjectRecord* known = trace.objects.Find(row);
  if (known == nullptr || known->items.empty()) return;
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(row);
  if (PyLong_CheckExact(key)) {
    int overflow = 0;
    long long index = PyLong_AsLongLongAndOverflow(key, &overflow);
    if (index < 0) index += size;
    const Shadow shadow = overflow == 0 ? ElementShadow(trace, row, static_cast<Py_ssize_t>(index)) : Shadow();
    if (shadow.kind != Shadow::Kind::kNone) {
      note.op.expect.SetShadow(shadow);
    }
    return;
  }
  Py_ssize_t start, stop, step;
  if (!UnpackQuietly(key, &start, &stop, &step)) return SpecializeDeep(trace, row, Shadow(), true);
  const Py_ssize_t count = PySlice_AdjustIndices(size, &start, &stop, step);
  note.op.expect.kind = ResultSpec::Kind::kItems;
  for (Py_ssize_t i = 0; i < count; ++i) note.op.expect.items.push_back(ElementShadow(trace, row, start + i * step));
}

// x[..., 0]: which dimension that is follows from how many there are. (torch takes some lists for tuples.)
static void ReadRankOfIndexed(Trace& trace, PyObject* tensor, PyObject* key) {
  bool counts = key == Py_Ellipsis;
  const bool is_row = PyTuple_Check(key) || PyList_Check(key);
  for (Py_ssize_t i = 0; is_row && i < PySequence_Fast_GET_SIZE(key); ++i) {
    counts = counts || PySequence_Fast_GET_ITEM(key, i) == Py_Ellipsis;
  }
  if (counts) ReadRank(trace, tensor);
}

namespace {

// Ints and booleans, in rows of rows: all of it is fixed, and torch makes a tensor of it.
bool IsIndexData(PyObject* object, int depth = 0) {
  constexpr int kDeepest = 8;
  if (PyLong_CheckExact(object) || PyBool_Check(object)) return true;
  if (PyRange_Check(object)) return true;
  if (depth > kDeepest || (!PyList_CheckExact(object) && !PyTuple_CheckExact(object))) return false;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
    if (!IsIndexData(PySequence_Fast_GET_ITEM(object, i), depth + 1)) return false;
  }
  return true;
}

// x[[0, 1]], x[:, (0, 2)]: returns whether the tensors that the binding makes of the key hold only fixed numbers. The
// binding reads the number of a tensor in a list, and no op shows that.
bool MakesIndices(PyObject* key) {
  const bool is_row = PyTuple_CheckExact(key) || PyList_CheckExact(key);
  if (!is_row) return PyRange_Check(key);
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(key); ++i) {
    PyObject* const item = PySequence_Fast_GET_ITEM(key, i);
    const bool is_plain = item == Py_None || item == Py_Ellipsis || PySlice_Check(item) || IsTensor(item);
    if (!(is_plain && PyTuple_CheckExact(key)) && !IsIndexData(item)) return false;
  }
  return true;
}

// Whether a row in the key may hold a tensor, which is asked for its number.
bool HasOtherRows(PyObject* key) {
  for (Py_ssize_t i = 0; (PyTuple_Check(key) || PyList_Check(key)) && i < PySequence_Fast_GET_SIZE(key); ++i) {
    PyObject* const item = PySequence_Fast_GET_ITEM(key, i);
    if (!IsScalar(item) && !PySlice_Check(item) && !IsTensor(item) && !IsIndexData(item)) return true;
  }
  return false;
}

}  // namespace

void Subscript(Trace& trace, FrameNote& note, PyObject* container, PyObject* key, Shadow key_shadow,
               Shadow container_shadow) {
  Specialize(trace, container, container_shadow);
  if (IsTensor(container)) {
    Call call{trace.frames.innermost(), note, nullptr, {container, key}, {Shadow(), key_shadow}, {}};
    ReadRankOfIndexed(trace, container, key);
    note.op.is_index = trace.numbers.any_open();
    TorchCall(trace, note, &call, "");
    note.op.before_nodes = trace.aten.mark();
    trace.aten.expect_constant = MakesIndices(key);
    return;
  }
  if (!DecideKey(trace, container, key, key_shadow))
    SpecializeDeep(trace, key, key_shadow, ComparesByIdentity(container));
  if (PyObject* dict = DictBelow(trace, container)) return Subscript(trace, note, dict, key, Shadow(), Shadow());
  ObjectRecord* known = trace.objects.Find(container);
  bool is_source = known != nullptr && known->state == ObjectRecord::State::kSource;
  if (!SubscriptedAs(container, &PyDict_Type) && !SubscriptedAs(container, &PyList_Type) &&
      !SubscriptedAs(container, &PyTuple_Type)) {
    // A __getitem__ of its own: of Python it runs as a frame, of C it is unknown (torch.Size slices as a tuple does).
    GuardTypeOrIdentity(trace, container);
    if (IsDeque(container)) return AdoptElements(trace, container);
    if (PyTuple_Check(container)) {
      // For a Python class it runs code, which sees the items.
      if (PyType_HasFeature(Py_TYPE(container), Py_TPFLAGS_HEAPTYPE))
        return SpecializeDeep(trace, container, Shadow(), true);
      AdoptElements(trace, container);
      return ItemOfRow(trace, note, container, key);
    }
    if (PyType_Check(container)) trace.guards.Class(reinterpret_cast<PyTypeObject*>(container), trace.frames.Here());
    if (is_source && !(Py_TYPE(container)->tp_flags & Py_TPFLAGS_HEAPTYPE) && !PyType_Check(container) &&
        !PyRange_Check(container)) {
      throw Break{Reason::unknown_operation, std::string("an item of ") + Py_TYPE(container)->tp_name};
    }
    return;
  }
  if (PyTuple_Check(container) || PyList_Check(container)) {
    GuardTypeOrIdentity(trace, container);
    if (const std::optional<ResultSpec> item = ItemFromEnd(trace, container, key)) {
      note.op.expect = *item;
      return;
    }
    AdoptElements(trace, container);
    ItemOfRow(trace, note, container, key);
    return;
  }
  if (PyDict_Check(container) && !PyDict_CheckExact(container)) {
    // __missing__ in Python runs as a frame; the __missing__ of a defaultdict stores the value that it makes.
    static PyObject* const missing_name = InternedName("__missing__");
    PyObject* missing = _PyType_Lookup(Py_TYPE(container), missing_name);
    if (missing != nullptr && !PyFunction_Check(missing)) {
      const bool present = IsTensor(key) ? HasKeyItself(container, key) : ItemQuietly(container, key) != nullptr;
      if (!present && (is_source || !MakesNewObjects(container))) {
        // Once it is stored, later calls find it.
        const bool is_first = is_source && MakesNewObjects(container);
        throw Break{is_first ? Reason::done_once : Reason::unknown_mutation, Py_TYPE(container)->tp_name};
      }
      if (!present) MarkMutated(trace, container);
    }
  }
  if (!is_source && PyDict_CheckExact(container)) {
    if (!IsPlainKey(key)) FixValues(trace, container);  // it may be equal to a plain one
    if (const Shadow* const open = StoredItem(trace, container, key); open != nullptr)
      return note.op.expect.SetShadow(*open);
  }
  const bool is_followed = PyDict_Check(container) && is_source && IsFollowedKey(trace, key);
  if (is_followed) {
    Shadow* written = StoredItem(trace, container, key);
    // (What a name leads to in an instance of a subclass are its attributes.)
    if (written == nullptr && PyDict_CheckExact(container) && IsScalar(key))
      written = WrittenShadow(trace, container, key);
    if (written != nullptr) {
      note.op.expect.SetShadow(*written);
      return GuardTypeOrIdentity(trace, container);
    }
  }
  if (is_followed && !known->adopted) {
    GuardTypeOrIdentity(trace, container);
    RefuseWrittenDict(trace, container);
    PyObject* value = ItemQuietly(container, key);
    if (value == nullptr) return trace.guards.Absent(known->source, key, trace.frames.Here());
    note.op.expect.SetSource(trace.guards.Child(known->source, Accessor::kKey, 0, key, value), known->pinned);
    return;
  }
  if (PyDict_CheckExact(container) && is_source && !known->adopted && IsReferenceToClass(key)) {
    GuardTypeOrIdentity(trace, container);
    PyObject* const own_key = KeyForClass(container, key);
    // Who looks there and finds nothing stores an item next.
    if (own_key == nullptr) throw Break{Reason::done_once, "a table of classes"};
    note.op.expect.SetSource(
        trace.guards.Child(known->source, Accessor::kKey, 0, own_key, ItemQuietly(container, own_key)), known->pinned);
    return;
  }
  if (PyDict_Check(container)) {
    AdoptElements(trace, container);
    return ReadKey(trace, container, key);
  }
  GuardTypeOrIdentity(trace, container);
}

void StoreSubscript(Trace& trace, FrameNote& note, PyObject* container, PyObject* key, PyObject* value,
                    Shadow key_shadow, Shadow value_shadow) {
  if (IsTensor(container)) {
    Call call{trace.frames.innermost(), note, nullptr, {container, key}, {Shadow(), key_shadow}, {}};
    if (value == nullptr) throw Break{Reason::unknown_operation, "an element of a tensor is deleted"};
    call.args.push_back(value);
    call.shadows.push_back(value_shadow);
    TorchCall(trace, note, &call, "");
    ReadRankOfIndexed(trace, container, key);
    note.op.is_index = trace.numbers.any_open() || IsTensor(value);
    note.op.expect.kind = ResultSpec::Kind::kNothing;
    trace.aten.expect_constant =
        MakesIndices(key) || (IsScalar(value) && !HasOtherRows(key));  // a tensor of the number
    return;
  }
  note.op.expect.kind = ResultSpec::Kind::kNothing;
  const bool stays_open =
      value != nullptr ? AddKey(trace, container, key, key_shadow) : DecideKey(trace, container, key, key_shadow);
  if (!stays_open) SpecializeDeep(trace, key, key_shadow, ComparesByIdentity(container));
  if (value != nullptr && PySlice_Check(key)) SpecializeDeep(trace, value, value_shadow, true);  // it is iterated over
  if (StoreOwn(trace, container, key, value, value_shadow)) return;
  if (value != nullptr && StoreItem(trace, container, key, value, value_shadow)) return;
  if (value != nullptr && StoreOutside(trace, container, key, value, value_shadow)) return;
  if (value != nullptr && StoreUnderNewKey(trace, container, key, value, value_shadow)) return;
  if (value != nullptr) Specialize(trace, value, value_shadow);
  ObjectRecord* known = trace.objects.Find(container);
  if (known == nullptr) {
    GuardTypeOrIdentity(trace, container);
    throw Break{Reason::unknown_mutation, Py_TYPE(container)->tp_name};
  }
  if (known->state != ObjectRecord::State::kSource) {
    if (PyDict_Check(container)) ReadKey(trace, container, key);
    return MarkMutated(trace, container);
  }
  const bool is_stored = value != nullptr && PyDict_Check(container) && HasPlainStore(container);
  if (!PyDict_CheckExact(container) && !PyList_CheckExact(container) && !is_stored) {
    // A Python __setitem__ runs as a frame; one in C is unknown.
    GuardTypeOrIdentity(trace, container);
    if (PyDict_Check(container) || PyList_Check(container) || !(Py_TYPE(container)->tp_flags & Py_TPFLAGS_HEAPTYPE)) {
      throw Break{Reason::unknown_mutation, Py_TYPE(container)->tp_name};
    }
    return;
  }
  if (PySlice_Check(key)) throw Break{Reason::unknown_mutation, "a slice of a list that existed before is assigned"};
  BeginMutation(trace, container);
  if (PyDict_Check(container)) ReadKey(trace, container, key);
  if (value != nullptr) {
    AddEffect(trace, Effect::Kind::kSetItem, container, "", {key, value}, {Shadow(), Shadow()});
  } else {
    AddEffect(trace, Effect::Kind::kDelItem, container, "", {key}, {Shadow()});
  }
}

}  // namespace frametap
