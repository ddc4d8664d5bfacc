#include "frame_eval/record/objects/identity.h"

#include <algorithm>

#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/fast_paths/repeated_calls.h"
#include "frame_eval/record/objects/class_names.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/objects/outside_containers.h"
#include "frame_eval/record/objects/quiet.h"
#include "frame_eval/record/objects/set_check.h"
#include "frame_eval/record/semantics/elements.h"
#include "frame_eval/record/semantics/foreign_operators.h"
#include "frame_eval/record/semantics/function_attributes.h"
#include "frame_eval/record/semantics/predicted_calls.h"
#include "frame_eval/record/shared_breaks.h"
#include "guards/objects/dict_items.h"
#include "guards/objects/dict_read.h"
#include "guards/objects/held_object.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/value.h"
#include "guards/objects/well_known_objects.h"
#include "guards/throw_if_null.h"

namespace frametap {

// Objects of which nothing but which one they are is worth a guard. Instances of subclasses of int, float and str are
// among them (enumerations): their value is not compared by parts.
// The checks that walk the bases of a class come last.
bool IsIdentityKind(PyObject* object) {
  constexpr unsigned long kByFlag =
      Py_TPFLAGS_TYPE_SUBCLASS | Py_TPFLAGS_LONG_SUBCLASS | Py_TPFLAGS_UNICODE_SUBCLASS | Py_TPFLAGS_BYTES_SUBCLASS;
  PyTypeObject* const type = Py_TYPE(object);
  if ((type->tp_flags & kByFlag) != 0 || PyFunction_Check(object) || PyMethod_Check(object) || PyCode_Check(object)) {
    return true;
  }
  if (type == &PyMethodDescr_Type || type == &PyWrapperDescr_Type || type == Objects().method_wrapper ||
      type == Objects().partial) {
    return true;
  }
  return PyObject_TypeCheck(object, Objects().module) || PyCFunction_Check(object) || PyModule_Check(object) ||
         PyFloat_Check(object) || PyComplex_Check(object);
}

bool IsExchangeable(const Trace& trace, PyObject* object) {
  return !trace.store.options().by_identity && PyObject_TypeCheck(object, Objects().module);
}

static void ReadAddress(Trace& trace, PyObject* object, int depth = 0);
static void ReadOrderOf(Trace& trace, PyObject* element);
namespace {

constexpr int kDeepest = 100;
constexpr Py_ssize_t kPairsUpTo = 8;

bool HasDefaultEq(PyObject* object) {
  return Py_TYPE(object)->tp_richcompare == PyBaseObject_Type.tp_richcompare ||
         Py_TYPE(object)->tp_richcompare == nullptr;
}

bool IsRow(PyObject* object) { return PyTuple_Check(object) || PyList_Check(object); }

// Of these there is one object for each value.
bool IsSingleton(PyObject* scalar) {
  if (PyLong_CheckExact(scalar)) {
    int overflow = 0;
    const long value = PyLong_AsLongAndOverflow(scalar, &overflow);
    return overflow == 0 && value >= -5 && value <= 256;
  }
  if (PyUnicode_CheckExact(scalar))
    return PyUnicode_GET_LENGTH(scalar) <= 1 && PyUnicode_KIND(scalar) == PyUnicode_1BYTE_KIND;
  c10::IValue constant;
  const bool is_device = TorchConstantOf(scalar, &constant) && constant.isDevice();
  return !PyFloat_CheckExact(scalar) && !PyBytes_CheckExact(scalar) && !PyComplex_CheckExact(scalar) && !is_device;
}

// A class of Python code that says itself how its instances are printed, or a type that prints no address.
bool PrintsItself(PyObject* object, Printed how) {
  PyTypeObject* type = Py_TYPE(object);
  if (PyType_Check(object) || PyModule_Check(object) || PyRange_Check(object) || PySlice_Check(object)) return true;
  if ((type->tp_flags & Py_TPFLAGS_HEAPTYPE) == 0) return false;
  return type->tp_repr != PyBaseObject_Type.tp_repr ||
         (how == Printed::kStr && type->tp_str != PyBaseObject_Type.tp_str);
}

// Objects, also in tuples and lists, as in the items of dict([(key, value)]).
void AddLeaves(PyObject* object, int levels, std::vector<PyObject*>* leaves) {
  if (IsScalar(object)) return RefuseNan(object);
  if (levels > 0 && IsRow(object)) {
    ForEachElement(object, [&](PyObject* element) { AddLeaves(element, levels - 1, leaves); });
    return;
  }
  leaves->push_back(object);
}

bool IsTable(PyObject* object) { return IsAnySet(object) || PyDict_Check(object); }

// Returns whether == of the object compares no identities unseen. Python code comes as a frame.
bool ComparesByValue(PyObject* object) {
  if (PyLong_Check(object) || PyFloat_Check(object) || PyComplex_Check(object) || PyUnicode_Check(object) ||
      PyBytes_Check(object) || PyByteArray_Check(object) || PyCode_Check(object) || IsPlainValue(object) ||
      IsNativeEnum(Py_TYPE(object))) {
    return true;
  }
  static PyObject* const name = InternedName("__eq__");
  return HasMethodInPython(object, name);
}

[[noreturn]] void ThrowUnknownElements(PyObject* container) {
  throw Break{Reason::unknown_operation, std::string("a comparison of the elements of ") + Py_TYPE(container)->tp_name};
}

}  // namespace

bool HoldsPlainItems(PyObject* dict) {
  for (const auto [key, value] : DictItems(dict)) {
    if (!IsPlainValue(key) || !IsPlainValue(value)) return false;
  }
  return true;
}

bool HoldsPlainValues(PyObject* container) {
  bool plain = true;
  const bool known = ForEachElement(container, [&](PyObject* element) { plain = plain && IsPlainValue(element); });
  return known && plain;
}

// The type itertools.groupby, which compares each key with the one before.
static const PyTypeObject* GroupType() {
  static const auto* const type = reinterpret_cast<PyTypeObject*>(OwnerOf("itertools", "groupby").Release());
  return type;
}

// The keys that a key function gives are seen here first. Two objects are compared only after one was seen.
static void ReadGroup(Trace& trace, PyObject* group) {
  PyObject* const key =
      PyTuple_CheckExact(group) && PyTuple_GET_SIZE(group) == 2 ? PyTuple_GET_ITEM(group, 0) : nullptr;
  if (key == nullptr || IsPlainValue(key) || (!IsRow(key) && IsFixed(trace, key))) return;
  throw Break{Reason::unknown_operation, "groups of objects"};
}

// The table that a call of C code or a display fills, or null.
static PyObject* TableFilledBy(const Event& e, PyObject* result) {
  if (e.op == Op::kSetUpdate) return e.in[0];
  if (result == nullptr) return nullptr;
  PyObject* const self = PyCFunction_Check(e.in[0]) ? PyCFunction_GET_SELF(e.in[0]) : nullptr;
  for (PyObject* object : {result, self, e.n > 1 ? e.in[1] : nullptr}) {
    if (object != nullptr && IsTable(object)) return object;
  }
  return nullptr;
}

// Returns whether C code could take elements from it that the recorder has not seen. A field of the type decides for nearly
// all arguments of calls. Iteration makes the parts of a tensor, so that no two are one object.
static bool HasUnseenElements(PyObject* object) {
  PyTypeObject* const type = Py_TYPE(object);
  constexpr unsigned long kKnown = Py_TPFLAGS_TUPLE_SUBCLASS | Py_TPFLAGS_LIST_SUBCLASS | Py_TPFLAGS_DICT_SUBCLASS |
                                   Py_TPFLAGS_UNICODE_SUBCLASS | Py_TPFLAGS_BYTES_SUBCLASS;
  if ((type->tp_flags & kKnown) != 0) return false;
  const bool has_items = type->tp_as_sequence != nullptr && type->tp_as_sequence->sq_item != nullptr;
  if (type->tp_iter == nullptr && !has_items) return false;
  return !IsTensor(object) && !HasKnownElements(object);
}

void ReadTableOfIterator(Trace& trace, const Event& e, PyObject* result) {
  if (e.op == Op::kForIter) {
    if (result != nullptr && Py_TYPE(e.in[0]) == GroupType()) ReadGroup(trace, result);
    return;
  }
  bool from_iterator = false, from_groups = false;
  for (int i = 1; i < e.n; ++i) {
    if (e.in[i] == nullptr || !HasUnseenElements(e.in[i])) continue;
    from_iterator = true;
    from_groups |= Py_TYPE(e.in[i]) == GroupType();
  }
  if (!from_iterator) return;  // as nearly always
  if (from_groups && result != nullptr && PyTuple_CheckExact(result)) ReadGroup(trace, result);
  if (from_groups && result != nullptr && PyList_CheckExact(result)) {
    ForEachElement(result, [&](PyObject* group) { ReadGroup(trace, group); });
  }
  PyObject* const filled = TableFilledBy(e, result);
  if (filled == nullptr) return;
  std::vector<PyObject*> keys;
  ForEachElement(filled, [&](PyObject* element) { AddLeaves(element, 2, &keys); });
  ReadDistinct(trace, keys);
}

bool IsFixed(Trace& trace, PyObject* object) {
  if (IsScalar(object)) return true;
  if (IsTensor(object)) return false;
  ObjectRecord* known = trace.objects.Find(object);
  if (known == nullptr) return IsIdentityKind(object);  // a constant
  if (known->state != ObjectRecord::State::kSource)
    return known->state == ObjectRecord::State::kFresh && IsIdentityKind(object);
  if (known->fixed && known->touched) return true;
  if (known->pinned || IsIdentityKind(object)) {
    GuardTypeOrIdentity(trace, object);
    Fix(trace, *known);
  }
  return known->pinned;
}

// E1
void ReadSame(Trace& trace, PyObject* a, PyObject* b) {
  if (IsScalar(a) || IsScalar(b)) return;
  MeetAsObject(trace, a);
  MeetAsObject(trace, b);
  const SourceId source_a = SourceOf(trace, a), source_b = SourceOf(trace, b);
  if (source_a.valid() && source_b.valid()) {
    const auto is_fixed = [&trace](PyObject* o) {
      return (!IsExchangeable(trace, o) || trace.objects.Find(o)->pinned) && IsFixed(trace, o);
    };
    if (source_a != source_b && !(is_fixed(a) && is_fixed(b)))
      trace.guards.SameObject(source_a, source_b, a == b, trace.frames.Here());
    return;
  }
  if (source_a.valid() == source_b.valid()) return;
  PyObject* outside = source_a.valid() ? a : b;
  PyObject* inside = source_a.valid() ? b : a;
  if (IsTensor(inside) || (trace.objects.Find(inside) != nullptr && !IsIdentityKind(inside))) return;
  // A constant that no path leads to.
  if (Py_TYPE(outside) == Py_TYPE(inside)) trace.guards.Identity(SourceOf(trace, outside), trace.frames.Here());
}

void ReadSameScalar(Trace& trace, PyObject* a, Shadow sa, PyObject* b, Shadow sb) {
  if (IsSingleton(a) || IsSingleton(b) || !SameValue(a, b)) return;
  if (sa.kind == Shadow::Kind::kNone && sb.kind == Shadow::Kind::kNone) return;
  if (sa.kind == sb.kind && sa.id == sb.id && a == b) return;
  if (sa.kind == Shadow::Kind::kSource && sb.kind == Shadow::Kind::kSource) {
    return trace.guards.SameObject(SourceId(sa.id), SourceId(sb.id), a == b, trace.frames.Here());
  }
  const Shadow& open = sa.kind == Shadow::Kind::kNone ? sb : sa;
  const bool constant = sa.kind == Shadow::Kind::kNone || sb.kind == Shadow::Kind::kNone;
  if (!constant || open.kind != Shadow::Kind::kSource || a != b) {
    throw Break{Reason::unknown_operation, "whether two equal numbers or strings are one object"};
  }
  trace.guards.Identity(SourceId(open.id), trace.frames.Here());
}

// E5
void RefuseNan(PyObject* object) {
  if (HoldsNan(object)) throw Break{Reason::unknown_operation, "NaN is equal to itself only"};
}

// E2
void ReadEqualElements(Trace& trace, PyObject* a, PyObject* b, int depth) {
  if (IsScalar(a) && IsScalar(b)) {
    if (HoldsNan(a)) RefuseNan(b);
    return;
  }
  ReadSame(trace, a, b);
  if (a != b && !HasDefaultEq(a) && !HasDefaultEq(b)) ReadEqual(trace, a, b, depth);
}

void ReadEqual(Trace& trace, PyObject* a, PyObject* b, int depth) {
  if (depth > kDeepest) throw TooDeep();
  if (IsScalar(a) || IsScalar(b) || IsTensor(a) || IsTensor(b)) return;
  if (HasDefaultEq(a) || HasDefaultEq(b)) return ReadSame(trace, a, b);
  if (IsRow(a) && IsRow(b)) {
    const Py_ssize_t n = std::min(PySequence_Fast_GET_SIZE(a), PySequence_Fast_GET_SIZE(b));
    for (Py_ssize_t i = 0; i < n; ++i) {
      ReadEqualElements(trace, PySequence_Fast_GET_ITEM(a, i), PySequence_Fast_GET_ITEM(b, i), depth + 1);
    }
  } else if (PyDict_Check(a) && PyDict_Check(b)) {
    const bool is_quiet = HasOnlyBuiltinKeys(a) && HasOnlyBuiltinKeys(b);
    for (const auto [key, value] : DictItems(a)) {
      ReadKey(trace, b, key);
      PyObject* const other = is_quiet ? PyDict_GetItemWithError(b, key) : ItemQuietly(b, key);
      if (other != nullptr) ReadEqualElements(trace, value, other, depth + 1);
    }
  } else if (IsAnySet(a) && IsAnySet(b)) {
    ForEachElement(a, [&](PyObject* element) { ReadKey(trace, b, element); });
  } else if (PyMethod_Check(a) && PyMethod_Check(b)) {
    ReadSame(trace, PyMethod_GET_SELF(a), PyMethod_GET_SELF(b));
    ReadSame(trace, PyMethod_GET_FUNCTION(a), PyMethod_GET_FUNCTION(b));
  } else if (PyCFunction_Check(a) && PyCFunction_Check(b)) {
    PyObject *self_a = PyCFunction_GET_SELF(a), *self_b = PyCFunction_GET_SELF(b);
    if (self_a != nullptr && self_b != nullptr) ReadSame(trace, self_a, self_b);
  } else if (IsDeque(a) && IsDeque(b)) {
    for (Py_ssize_t i = 0; i < std::min(DequeLength(a), DequeLength(b)); ++i) {
      ReadEqualElements(trace, DequeItem(a, i), DequeItem(b, i), depth + 1);
    }
  } else if (PyWeakref_Check(a) && PyWeakref_Check(b)) {
    ReadEqualElements(trace, PyWeakref_GET_OBJECT(a), PyWeakref_GET_OBJECT(b), depth + 1);
  } else if (IsMappingProxy(a) || IsMappingProxy(b)) {
    ReadEqual(trace, IsMappingProxy(a) ? HeldObject(a) : a, IsMappingProxy(b) ? HeldObject(b) : b, depth + 1);
  } else if (PyDictViewSet_Check(a) || PyDictViewSet_Check(b)) {
    ReadElements(trace, {a, b});
  } else if (!ComparesByValue(a) && !ComparesByValue(b) && Py_TYPE(a)->tp_richcompare == Py_TYPE(b)->tp_richcompare) {
    ThrowUnknownElements(a);
  }
}

// E3
void ReadDistinct(Trace& trace, const std::vector<PyObject*>& objects) {
  if (static_cast<Py_ssize_t>(objects.size()) <= kPairsUpTo) {
    for (size_t i = 0; i < objects.size(); ++i) {
      for (size_t j = 0; j < i; ++j) ReadEqualElements(trace, objects[j], objects[i]);
    }
    return;
  }
  for (PyObject* object : objects) ReadAddress(trace, object);
}

static void ReadAddress(Trace& trace, PyObject* object, int depth) {
  if (depth > kDeepest) throw TooDeep();
  if (IsRow(object)) {
    ForEachElement(object, [&](PyObject* element) { ReadAddress(trace, element, depth + 1); });
    return;
  }
  RefuseNan(object);
  if (IsFixed(trace, object)) return;
  if (SourceId source = SourceOf(trace, object); source.valid())
    trace.guards.Add(GuardKind::kAddress, source, trace.frames.Here());
}

void ReadKey(Trace& trace, PyObject* table, PyObject* key) {
  if (IsScalar(key)) return RefuseNan(key);
  RefuseForeignKey(key);
  const bool is_itself =
      HasDefaultEq(key) && IsFixed(trace, key);  // its place is guarded: equal to another one, or never
  absl::InlinedVector<PyObject*, 16> others;
  ForEachElement(table, [&](PyObject* other) {
    if (IsScalar(other) || (is_itself && HasDefaultEq(other) && IsFixed(trace, other))) return;
    others.push_back(other);
  });
  if (others.empty()) return;
  ObjectRecord* known = trace.objects.Find(table);
  if (static_cast<Py_ssize_t>(others.size()) <= kPairsUpTo) {
    for (PyObject* other : others) ReadEqualElements(trace, other, key);
    if (known != nullptr) known->keys_by_address = 0;
    return;
  }
  if (known == nullptr || known->keys_by_address < others.size()) {
    for (PyObject* other : others) ReadAddress(trace, other);
  }
  ReadAddress(trace, key);
  if (known != nullptr) known->keys_by_address = others.size() + 1;  // `key` may be added now
}

void ReadElements(Trace& trace, std::initializer_list<PyObject*> containers) {
  std::vector<PyObject*> objects;
  for (PyObject* container : containers) {
    const bool known = ForEachElement(container, [&](PyObject* element) {
      if (IsScalar(element)) return RefuseNan(element);
      objects.push_back(element);
    });
    if (!known) ThrowUnknownElements(container);
  }
  ReadDistinct(trace, objects);
}

void ReadIdentities(Trace& trace, Reads reads, const Call& call) {
  PyObject* const first = call.args.empty() ? nullptr : call.args[0];
  PyObject* const second = call.args.size() > 1 ? call.args[1] : nullptr;
  switch (reads) {
    case Reads::kValues:
      return;
    case Reads::kSearch:
      if (second != nullptr) ReadSearch(trace, first, second);
      return;
    case Reads::kKey:
      if (second != nullptr) ReadKey(trace, first, second);
      return;
    case Reads::kKeys:
    case Reads::kCommon: {
      std::vector<PyObject*> objects;
      for (PyObject* arg : call.args) {
        if (arg == nullptr) continue;
        const bool known = ForEachElement(arg, [&](PyObject* element) { AddLeaves(element, 2, &objects); });
        if (!known && reads == Reads::kCommon) ThrowUnknownElements(arg);
      }
      return ReadDistinct(trace, objects);
    }
    case Reads::kEqual:
      if (second == nullptr) return;
      ReadSame(trace, first, second);  // object.__eq__, whatever the classes say about ==
      return ReadEqual(trace, first, second);
    case Reads::kHash:
      if (first != nullptr) ReadHash(trace, first);
      return;
    case Reads::kRepr:
    case Reads::kStr:
      for (PyObject* arg : call.args) {
        if (arg != nullptr) ReadPrinted(trace, arg, reads == Reads::kStr ? Printed::kStr : Printed::kRepr);
      }
      return;
  }
}

// `item` is looked for among the elements of a sequence, which are compared one after the other.
void ReadSearch(Trace& trace, PyObject* sequence, PyObject* item) {
  bool found = false;
  const bool known = ForEachElement(sequence, [&](PyObject* element) {
    if (!found && (IsTensor(element) || IsTensor(item))) throw MembershipByElements();
    if (!found) ReadEqualElements(trace, element, item);
    found = found || element == item;
  });
  if (!known && !IsPlainValue(item)) ThrowUnknownElements(sequence);
}

// E6
void ReadLayout(Trace& trace, PyObject* object) {
  ObjectRecord* known = IsAnySet(object) ? trace.objects.Find(object) : nullptr;
  if (known == nullptr || known->state != ObjectRecord::State::kSource) return;
  if (!known->mutated) return trace.guards.Add(GuardKind::kLayout, known->source, trace.frames.Here());
  if (!trace.guards.HasLayout(known->source)) {
    throw Break{Reason::set_from_outside, "a set that was changed before, in its order"};
  }
}

// E4, E6
void ReadOrder(Trace& trace, PyObject* set) {
  const ObjectRecord* known = trace.objects.Find(set);
  if (known != nullptr && known->state == ObjectRecord::State::kSource && known->mutated) ReadLayout(trace, set);
  ForEachElement(set, [&](PyObject* element) {
    if (!PyTuple_CheckExact(element)) return ReadOrderOf(trace, element);
    ForEachElement(element, [&](PyObject* part) { ReadOrderOf(trace, part); });
  });
}

static void ReadOrderOf(Trace& trace, PyObject* element) {
  RefuseNan(element);
  if (Py_TYPE(element)->tp_hash != PyBaseObject_Type.tp_hash && !IsTensor(element)) return;
  ReadsAddress(trace);
  if (!IsFixed(trace, element)) throw Break{Reason::set_from_outside, "a set in the order of its elements' addresses"};
}

// An object that the caller passes, alone or in a sequence, is another one in each call. One in a dict may be, too.
static bool IsPassed(const Trace& trace, SourceId id, bool in_dicts) {
  const auto is_content = [&](Accessor a) {
    return a == Accessor::kItem || a == Accessor::kNext || (in_dicts && a == Accessor::kKey);
  };
  while (id.valid() && is_content(trace.guards.accessor(id))) id = trace.guards.parent(id);
  return id.valid() && (trace.guards.accessor(id) == Accessor::kLocal ||
                        trace.guards.accessor(id) == Accessor::kStack || trace.guards.accessor(id) == Accessor::kCell);
}

void FixAddress(Trace& trace, SourceId source) {
  if (!source.valid() || IsPassed(trace, source, false)) {
    throw Break{Reason::unknown_callable, "the id or hash of an object that is made for the call"};
  }
  trace.guards.Add(GuardKind::kAddress, source, trace.frames.Here());
}

void ReadTensorAddress(Trace& trace, PyObject* tensor) {
  const SourceId source = SourceOf(trace, tensor);
  const bool is_parameter = PyObject_TypeCheck(tensor, Objects().parameter);
  source.valid() && is_parameter ? trace.guards.Add(GuardKind::kAddress, source, trace.frames.Here())
                                 : FixAddress(trace, source);
}

Shadow OpenAddress(Trace& trace, PyObject* object) {
  const SourceId source = SourceOf(trace, object);
  const bool is_parameter = PyObject_TypeCheck(object, Objects().parameter);
  if (!trace.numbers.any_open() || is_parameter || !IsPassed(trace, source, true) || IsFixed(trace, object))
    return Shadow();
  const Ref<> address = Must(PyLong_FromVoidPtr(object));
  return Shadow{Shadow::Kind::kSource, trace.guards.Child(source, Accessor::kAddress, 0, nullptr, address.get()).raw()};
}

SourceId AddressedBy(const Trace& trace, Shadow shadow) {
  if (shadow.kind != Shadow::Kind::kSource) return SourceId();
  const SourceId source(shadow.id);
  return trace.guards.accessor(source) == Accessor::kAddress ? trace.guards.parent(source) : SourceId();
}

void ReadsAddress(Trace& trace) {
  if (trace.repeated_calls) trace.repeated_calls->Invalidate();
}

void ReadHash(Trace& trace, PyObject* object) {
  if (PyTuple_Check(object) || PyFrozenSet_CheckExact(object)) {
    ForEachElement(object, [&](PyObject* element) { ReadHash(trace, element); });
    return;
  }
  RefuseNan(object);
  const bool by_address = IsTensor(object) || PyMethod_Check(object) || PyCFunction_Check(object) ||
                          Py_TYPE(object)->tp_hash == PyBaseObject_Type.tp_hash;
  if (!by_address) return;
  ReadsAddress(trace);
  if (!IsFixed(trace, object)) throw Break{Reason::unknown_callable, "hash of an object's address"};
}

// Reads the names and objects that are printed with a function, a method, a partial or a slice.
static void ReadPrintedParts(Trace& trace, PyObject* object, int depth) {
  if (PyFunction_Check(object)) return FixPrintedName(trace, object);
  if (PyMethod_Check(object)) {
    PyObject* const function = PyMethod_GET_FUNCTION(object);
    if (PyFunction_Check(function)) {
      FixPrintedName(trace, function);
    } else if (!PyCFunction_Check(function)) {
      throw Break{Reason::unknown_callable, "a method that is not a function is printed"};
    }
    return ReadPrinted(trace, PyMethod_GET_SELF(object), Printed::kRepr, depth + 1);
  }
  if (PySlice_Check(object)) {
    const auto* const slice = reinterpret_cast<PySliceObject*>(object);
    for (PyObject* const part : {slice->start, slice->stop, slice->step}) {
      if (!IsScalar(part)) throw Break{Reason::unknown_callable, "a slice of other objects than numbers is printed"};
    }
  }
  if (PyObject_TypeCheck(object, Objects().partial)) {
    throw Break{Reason::unknown_callable, "a functools.partial is printed"};
  }
}

void ReadPrinted(Trace& trace, PyObject* object, Printed how, int depth) {
  if (depth > kDeepest) throw TooDeep();
  if (IsScalar(object)) return;
  ReadClassName(trace, PyType_Check(object) ? reinterpret_cast<PyTypeObject*>(object) : Py_TYPE(object));
  const bool plain_row = IsRow(object) || IsAnySet(object);
  if (IsAnySet(object)) ReadOrder(trace, object);
  if (plain_row || PyDict_Check(object)) {
    ForEachElement(object, [&](PyObject* element) { ReadPrinted(trace, element, Printed::kRepr, depth + 1); });
    if (!PyDict_Check(object)) return;
    if (PyType_IsSubtype(Py_TYPE(object), DefaultDict())) {
      if (SourceOf(trace, object).valid())
        throw Break{Reason::unknown_callable, "a defaultdict from outside is printed"};
      ReadPrinted(trace, FactoryOf(object).get(), Printed::kRepr, depth + 1);
    }
    for (const auto [key, value] : DictItems(object)) ReadPrinted(trace, value, Printed::kRepr, depth + 1);
    return;
  }
  if (PyExceptionInstance_Check(object)) {
    return ReadPrinted(trace, reinterpret_cast<PyBaseExceptionObject*>(object)->args, Printed::kRepr, depth + 1);
  }
  ReadPrintedParts(trace, object, depth);
  if (PrintsItself(object, how)) return;
  ReadsAddress(trace);
  if (!IsFixed(trace, object)) {
    throw Break{Reason::unknown_callable,
                std::string("the address of an object is printed: ") + Py_TYPE(object)->tp_name};
  }
}

}  // namespace frametap
