// The recorder before an operation: its reads are guarded, and its changes are noted.

#include "absl/container/flat_hash_set.h"
#include "frame_eval/interpreter/opcodes/names.h"
#include "frame_eval/record/callables/getters.h"
#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/fast_paths/module_calls.h"
#include "frame_eval/record/fast_paths/repeated_calls.h"
#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/numbers/sequences.h"
#include "frame_eval/record/numbers/symbolic_args.h"
#include "frame_eval/record/objects/cached_properties.h"
#include "frame_eval/record/objects/force.h"
#include "frame_eval/record/objects/garbage.h"
#include "frame_eval/record/objects/identity.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/objects/open_keys.h"
#include "frame_eval/record/objects/outside_containers.h"
#include "frame_eval/record/objects/own_dicts.h"
#include "frame_eval/record/objects/quiet.h"
#include "frame_eval/record/objects/set_check.h"
#include "frame_eval/record/objects/variables.h"
#include "frame_eval/record/recorder.h"
#include "frame_eval/record/semantics/attribute_stores.h"
#include "frame_eval/record/semantics/attributes.h"
#include "frame_eval/record/semantics/calls.h"
#include "frame_eval/record/semantics/containers.h"
#include "frame_eval/record/semantics/elements.h"
#include "frame_eval/record/semantics/foreign_operators.h"
#include "frame_eval/record/semantics/generators.h"
#include "frame_eval/record/semantics/iterators.h"
#include "frame_eval/record/trace/array_nodes.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/well_known_objects.h"
#include "guards/throw_if_null.h"

namespace frametap {

constexpr uint64_t SetOf(std::initializer_list<Op> ops) {
  uint64_t set = 0;
  for (Op op : ops) set |= uint64_t{1} << static_cast<int>(op);
  return set;
}
static_assert(static_cast<int>(Op::kOther) < 64);

// Operations that read their operands.
constexpr uint64_t kOperators =
    SetOf({Op::kUnary, Op::kBinary, Op::kCompare, Op::kContains, Op::kSubscr, Op::kStoreSubscr, Op::kDeleteSubscr,
           Op::kGetIter, Op::kUnpack, Op::kUnpackEx, Op::kTruth, Op::kBeforeWith, Op::kFormatValue, Op::kGetLen,
           Op::kListExtend, Op::kSetUpdate, Op::kDictUpdate, Op::kDictMerge});
// … and that take elements out of each.
constexpr uint64_t kTakesElements =
    SetOf({Op::kUnpack, Op::kUnpackEx, Op::kContains, Op::kListExtend, Op::kSetUpdate, Op::kDictUpdate});
static_assert((kTakesElements & ~kOperators) == 0);
constexpr bool IsIn(uint64_t set, Op op) { return (set >> static_cast<int>(op) & 1) != 0; }

// Whether the keys of the dict that the instruction makes are strings, one for each value. So the values of the dict stand
// in the order of the instruction.
static bool BuildsByName(const Event& e) {
  if (e.op != Op::kBuildMap && e.op != Op::kBuildConstKeyMap) return false;
  absl::flat_hash_set<PyObject*> names;
  const auto add = [&names](PyObject* key) {
    return PyUnicode_CheckExact(key) && names.insert(Interned(key).get()).second;
  };
  if (e.op == Op::kBuildMap) {
    for (int i = 0; i < e.n; i += 2) {
      if (!add(e.in[i])) return false;
    }
    return true;
  }
  for (Py_ssize_t i = 0; i < e.n - 1; ++i) {
    if (!add(PyTuple_GET_ITEM(e.in[e.n - 1], i))) return false;
  }
  return true;
}

// `n in (2, 5)`, `n not in self.milestones`, `id(x) in ids`: an int is compared with the few ints that the container holds,
// where one of them is not fixed. Returns false if they must be.
static bool DecideMembership(Trace& trace, PyObject* container, PyObject* item, Shadow shadow) {
  constexpr Py_ssize_t kMost = 8;
  const bool is_row = PyTuple_CheckExact(container) || PyList_CheckExact(container);
  if (!PyLong_CheckExact(item) || !(LeavesOpen(trace, item, shadow) || (is_row && HasOpenItems(trace, container)))) {
    return false;
  }
  std::vector<PyObject*> members;
  Py_ssize_t at = 0;
  PyObject *key, *value;
  Py_hash_t hash;
  static PyObject* const name = InternedName("__contains__");
  const bool is_dict =
      PyDict_Check(container) && _PyType_Lookup(Py_TYPE(container), name) == _PyType_Lookup(&PyDict_Type, name);
  if (is_dict && PyDict_GET_SIZE(container) <= kMost) {
    while (PyDict_Next(container, &at, &key, &value)) members.push_back(key);
  } else if (is_row && PySequence_Fast_GET_SIZE(container) <= kMost) {
    members.assign(PySequence_Fast_ITEMS(container),
                   PySequence_Fast_ITEMS(container) + PySequence_Fast_GET_SIZE(container));
  } else if (PyFrozenSet_CheckExact(container) && PySet_GET_SIZE(container) <= kMost) {
    while (_PySet_NextEntry(container, &at, &key, &hash) != 0) members.push_back(key);
  } else {
    return false;
  }
  for (PyObject* member : members) {
    if (!PyLong_CheckExact(member)) return false;
  }
  if (is_dict || is_row) {
    AdoptElements(trace, container);
  } else {
    SpecializeDeep(trace, container, Shadow(), true);
  }
  FixType(trace, shadow);  // an object that cannot be hashed raises
  for (size_t i = 0; i < members.size(); ++i) {
    const Shadow of_member = is_row ? ElementShadow(trace, container, static_cast<Py_ssize_t>(i)) : Shadow();
    if (!DecideNumbers(trace, item, shadow, members[i], of_member, Py_EQ, false)) return false;
    if (Must(PyObject_RichCompareBool(item, members[i], Py_EQ))) return true;
  }
  return true;
}

// Whether MATCH_CLASS asks for the type of a number alone: `case int()`.
static bool MatchesByType(const Event& e) {
  return IsNumber(e.in[0]) && Py_TYPE(e.in[1]) == &PyType_Type && e.arg == 0 && PyTuple_GET_SIZE(e.in[2]) == 0;
}

// MATCH_CLASS of an object that existed before. The instruction reads attributes without an event for each: those in the
// pattern, and those that __match_args__ names.
static void ReadClassPattern(Trace& trace, const Event& e) {
  static PyObject* const class_name = InternedName("__class__");
  static PyObject* const places_name = InternedName("__match_args__");
  const Break refusal{Reason::unknown_operation, "a class pattern"};
  PyObject* const subject = e.in[0];
  RefuseOddNames(Py_TYPE(subject));
  const bool says_its_class =
      _PyType_Lookup(Py_TYPE(subject), class_name) != _PyType_Lookup(&PyBaseObject_Type, class_name);
  if (Py_TYPE(e.in[1]) != &PyType_Type || says_its_class || IsTensor(subject)) throw refusal;
  auto* const type = reinterpret_cast<PyTypeObject*>(e.in[1]);
  GuardTypeOrIdentity(trace, subject);
  GuardTypeOrIdentity(trace, e.in[1]);
  trace.guards.Class(type, trace.frames.Here());
  if (PyType_IsSubtype(Py_TYPE(subject), type) == 0) return;
  std::vector<PyObject*> names;
  PyObject* const places = e.arg > 0 ? _PyType_Lookup(type, places_name) : nullptr;
  const bool matches_itself = places == nullptr && e.arg == 1 && PyType_HasFeature(type, _Py_TPFLAGS_MATCH_SELF);
  if (e.arg > 0 && !matches_itself) {
    if (places == nullptr || !PyTuple_CheckExact(places) || PyTuple_GET_SIZE(places) < e.arg) throw refusal;
    for (int i = 0; i < e.arg; ++i) names.push_back(PyTuple_GET_ITEM(places, i));
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(e.in[2]); ++i) names.push_back(PyTuple_GET_ITEM(e.in[2], i));
  for (PyObject* name : names) {
    const bool is_plain = PyUnicode_CheckExact(name) && IsOfPythonClass(subject);
    if (!is_plain || !ReadAttributeInC(trace, subject, Interned(name).get())) throw refusal;
  }
}

static bool HasTensor(const Event& e) {
  return std::any_of(e.in, e.in + e.n, [](PyObject* object) { return object != nullptr && IsTensor(object); });
}

// An instruction on tensors: its operands are the arguments of an op.
static void CallOp(Trace& trace, FrameState& f, FrameNote& note, const Event& e) {
  Call call{f, note, nullptr, {}, {}, {}};
  call.args.assign(e.in, e.in + e.n);
  call.shadows.assign(e.shadows, e.shadows + e.n);
  TorchCall(trace, note, &call, "");
}

void Recorder::Before(FrameState& f, FrameNote& note, const Event& e) {
  note.op.expect.Reset();
  note.op.ForgetOperands();
  note.op.returned = nullptr;
  note.op.returned_shadow = Shadow();
  note.op.nodes_before = trace_.node_count();
  note.containers_before = trace_.objects.containers.size();
  trace_.aten.decided = nullptr;
  if (!trace_.lifetimes.settled.empty()) [[unlikely]]
    MeetStores(trace_, f, e);
  if (trace_.objects.has_open_keys) [[unlikely]]
    MeetOpenKeys(trace_, e);
  if (trace_.objects.has_open_views) [[unlikely]]
    MeetOpenViews(trace_, e);
  if (IsIn(kOperators, e.op)) {
    if (ArrayOperator(trace_, note, e)) return;
    RefuseForeign(trace_, e);
    if (IsIn(kTakesElements, e.op)) {
      for (int i = 0; i < e.n; ++i) {
        TakesRest(trace_, e, e.in[i]) ? trace_.objects.Find(e.in[i])->MutatedIn(trace_.epoch)
                                      : MarkAdvanced(trace_, e.in[i]);
      }
    }
  }
  switch (e.op) {
    case Op::kLoadGlobal:  // reported before only where code of the program decides
      throw Break{Reason::unknown_operation, "globals or builtins that are not a plain dict"};
    case Op::kUnary:
      if (e.arg == 2) return TruthOf(trace_, note, e.in[0], e.shadows[0]);
      if (HasTensor(e)) return CallOp(trace_, f, note, e);
      if (ScalarNode(trace_, note, e)) return;
      return SpecializeAll(trace_, e);
    case Op::kBinary:
      return BinaryNumbers(trace_, note, e);
    case Op::kCompare:
      return CompareValues(trace_, note, e.in[0], e.shadows[0], e.in[1], e.shadows[1], e.arg);
    case Op::kIs:
      return CompareIdentity(trace_, e.in[0], e.shadows[0], e.in[1], e.shadows[1]);
    case Op::kIsNone:
      return CompareIdentity(trace_, e.in[0], e.shadows[0], Py_None, Shadow());
    case Op::kTruth:
      return TruthOf(trace_, note, e.in[0], e.shadows[0]);
    case Op::kContains:
      if (!DecideKey(trace_, e.in[1], e.in[0], e.shadows[0])) {
        if (DecideMembership(trace_, e.in[1], e.in[0], e.shadows[0])) return Specialize(trace_, e.in[1], e.shadows[1]);
        Specialize(trace_, e.in[0], e.shadows[0]);
      }
      Specialize(trace_, e.in[1], e.shadows[1]);
      return Contains(trace_, note, e.in[1], e.in[0]);
    case Op::kSubscr:
      return Subscript(trace_, note, e.in[0], e.in[1], e.shadows[1], e.shadows[0]);
    case Op::kStoreSubscr:
      return StoreSubscript(trace_, note, e.in[1], e.in[2], e.in[0], e.shadows[2], e.shadows[0]);
    case Op::kDeleteSubscr:
      return StoreSubscript(trace_, note, e.in[0], e.in[1], nullptr, e.shadows[1], Shadow());
    case Op::kLoadAttr:
    case Op::kLoadMethod:
      LoadAttribute(trace_, note, e.in[0], e.shadows[0], e.name);
      if (note.op.expect.answer != nullptr) f.answer = Py_NewRef(note.op.expect.answer);
      return;
    case Op::kStoreAttr:
      return StoreAttribute(trace_, note, e.in[1], e.name, e.in[0], e.shadows[0]);
    case Op::kDeleteAttr:
      return DeleteAttribute(trace_, note, e.in[0], e.name);
    case Op::kCall:
    case Op::kCallEx:
      if (e.op == Op::kCallEx) {
        if (note.passes_on && PassOn(trace_, e)) return;
        AdoptElements(trace_, e.in[1]);
        if (e.n > 2 && e.in[2] != nullptr) AdoptElements(trace_, e.in[2]);
      }
      if (trace_.repeated_calls && e.op == Op::kCall && PyObject_TypeCheck(e.in[0], Objects().module)) {
        if (Ref<> result = trace_.repeated_calls->Call(note, e)) {
          f.answer = result.Release();
          return;
        }
      }
      return Invoke(trace_, CallOf(trace_, f, note, e));
    case Op::kStoreGlobal: {
      PyObject* globals = f.function->func_globals;
      const SourceId dict = trace_.guards.Pinned(globals, "G");
      if (trace_.objects.Find(globals) == nullptr) {
        AddFresh(trace_, globals, ObjectRecord::State::kOpaque);
      } else if (SourceOf(trace_, globals).valid()) {
        FromSource(trace_, dict, globals, true);  // given to the function as well: reads of it see what is stored now
      }
      AddEffect(trace_, Effect::Kind::kSetGlobal, globals, PyUnicode_AsUTF8(e.name), {e.in[0]}, {e.shadows[0]});
      SetWritten(trace_, globals, e.name, e.shadows[0]);
      note.op.expect.kind = ResultSpec::Kind::kNothing;
      return;
    }
    case Op::kStoreDeref:
      note.op.expect.kind = ResultSpec::Kind::kNothing;
      return StoreDeref(trace_, f, e);
    case Op::kGetIter: {
      PyObject* object = e.in[0];
      Specialize(trace_, object, e.shadows[0]);
      if (IsTensor(object)) {
        ReadTensor(trace_, object, true, false);
        return CallOp(trace_, f, note, e);
      }
      if (IsMetIterator(trace_, object) || PyGen_CheckExact(object))
        return GuardTypeOrIdentity(trace_, object);  // it is its own iterator
      if (trace_.iteration.open.contains(object)) return;
      const ObjectRecord* const known =
          PySet_CheckExact(object) && PySet_GET_SIZE(object) <= 1 ? trace_.objects.Find(object) : nullptr;
      if (known != nullptr && known->state == ObjectRecord::State::kFresh)
        return FixKeys(trace_, object);  // its order reads nothing
      PyObject* const dict = DictOfOpenView(trace_, object);
      note.op.marks.makes_iterator = dict != nullptr || LeavesContentOpen(trace_, object);
      if (note.op.marks.makes_iterator) trace_.iteration.iterated.assign(1, dict != nullptr ? dict : object);
      if (note.op.marks.makes_iterator) return;
      if (LoopOver(trace_, object)) return;
      SpecializeDeep(trace_, object, Shadow(), true);
      return ViewRows(trace_, object);
    }
    case Op::kForIter: {
      RefuseForeignOperator(e.in[0]);
      ObjectRecord* known = trace_.objects.Find(e.in[0]);
      if (trace_.iteration.open.contains(e.in[0])) {
        known->MutatedIn(trace_.epoch);
        note.op.expect.kind = ResultSpec::Kind::kOpen;
        return;
      }
      if (known != nullptr && known->state != ObjectRecord::State::kSource) return MarkMutated(trace_, e.in[0]);
      if (PyGen_CheckExact(e.in[0])) return MeetGenerator(trace_, e.in[0]);
      TakeNext(trace_, note, e.in[0]);
      return;
    }
    case Op::kUnpack:
    case Op::kUnpackEx:
      note.op.unpacks = e.arg;
      if (IsTensor(e.in[0])) {
        ReadTensor(trace_, e.in[0], true, false);
        return CallOp(trace_, f, note, e);
      }
      if (IteratesByPlace(e.in[0]) || PyDict_Check(e.in[0])) return AdoptElements(trace_, e.in[0]);
      if (e.op == Op::kUnpack && GiveItems(trace_, note, e.in[0], e.arg)) return;
      FixView(trace_, e.in[0]);
      if (IsAnySet(e.in[0])) ReadOrder(trace_, e.in[0]);
      return SpecializeAll(trace_, e);
    case Op::kBuildTuple: {
      note.op.expect.kind = ResultSpec::Kind::kItems;
      note.op.expect.items.assign(e.shadows, e.shadows + e.n);
      return;
    }
    case Op::kListToTuple:  // also whatever stands behind `*` in a call
      if (GiveRow(trace_, note, e.in[0])) return;
      MarkAdvanced(trace_, e.in[0]);
      if (IsTensor(e.in[0])) throw Break{Reason::unknown_operation, "a tensor is unpacked"};
      if (PyList_CheckExact(e.in[0])) {
        AdoptElements(trace_, e.in[0]);
        const ObjectRecord* list = trace_.objects.Find(e.in[0]);
        if (list == nullptr || list->items.empty()) return;
        note.op.expect.kind = ResultSpec::Kind::kItems;
        note.op.expect.items.assign(list->items.begin(), list->items.end());
        return;
      }
      if (HasOpenItems(trace_, e.in[0])) return KeepItems(trace_, note, {e.in[0]});
      SpecializeDeep(trace_, e.in[0], e.shadows[0], true);
      return;
    case Op::kMakeFunction:
      return;
    case Op::kBuildList:
    case Op::kBuildSet:
    case Op::kBuildMap:
    case Op::kBuildConstKeyMap:
    case Op::kBuildSlice:
    case Op::kBuildString: {
      if (e.op == Op::kBuildList || e.op == Op::kBuildSlice) {
        bool open = false;
        for (int i = 0; e.op == Op::kBuildSlice && i < e.n; ++i) RefuseForeignKey(e.in[i]);
        for (int i = 0; i < e.n; ++i) note.op.expect.items.push_back(KeepOpen(trace_, e.in[i], e.shadows[i], &open));
        if (open) note.op.expect.kind = ResultSpec::Kind::kItems;
        if (e.op == Op::kBuildSlice) note.op.expect.items.resize(3);
        return;
      }
      if (BuildsByName(e)) {
        const int step = e.op == Op::kBuildMap ? 2 : 1;
        bool open = false;
        for (int i = 0; step == 2 && i < e.n; i += step) Specialize(trace_, e.in[i], e.shadows[i]);
        for (int i = step - 1; i < e.n - 2 + step; i += step) {
          note.op.expect.items.push_back(KeepOpen(trace_, e.in[i], e.shadows[i], &open));
        }
        if (open) note.op.expect.kind = ResultSpec::Kind::kItems;
        return;
      }
      if (e.op != Op::kBuildSet && e.op != Op::kBuildMap) {
        for (int i = 0; i < e.n; ++i) Specialize(trace_, e.in[i], e.shadows[i]);
        return;
      }
      note.op.marks.has_open_keys = DecideKeys(trace_, e);
      for (int i = 1; e.op == Op::kBuildMap && i < e.n; i += 2) Specialize(trace_, e.in[i], e.shadows[i]);
      std::vector<PyObject*> keys;
      for (int i = 0; i < e.n; i += e.op == Op::kBuildMap ? 2 : 1) {
        RefuseNan(e.in[i]);
        if (IsScalar(e.in[i])) continue;
        RefuseForeignKey(e.in[i]);
        keys.push_back(e.in[i]);
      }
      return ReadDistinct(trace_, keys);
    }
    case Op::kListAppend:
    case Op::kSetAdd:
    case Op::kMapAdd: {
      const bool has_key = e.op != Op::kListAppend;
      if (has_key && !AddKey(trace_, e.in[0], e.in[1], e.shadows[1])) SpecializeKey(trace_, e.in[1], e.shadows[1]);
      note.op.expect.kind = ResultSpec::Kind::kNothing;
      if (e.op == Op::kListAppend && AppendItems(trace_, e.in[0], nullptr, e.in[1], e.shadows[1])) return;
      // A comprehension that was begun before the segment.
      if (e.op == Op::kListAppend && AppendOutside(trace_, e.in[0], nullptr, e.in[1], e.shadows[1])) return;
      if (e.op == Op::kMapAdd && StoreOwn(trace_, e.in[0], e.in[1], e.in[2], e.shadows[2])) return;
      for (int i = has_key ? 2 : 1; i < e.n; ++i) Specialize(trace_, e.in[i], e.shadows[i]);
      if (has_key) ReadKey(trace_, e.in[0], e.in[1]);
      if (SourceOf(trace_, e.in[0]).valid()) {
        BeginMutation(trace_, e.in[0]);
        if (e.op == Op::kMapAdd) {
          AddEffect(trace_, Effect::Kind::kSetItem, e.in[0], "", {e.in[1], e.in[2]}, {Shadow(), Shadow()});
        } else {
          AddEffect(trace_, Effect::Kind::kCall, e.in[0], "add", {e.in[1]}, {Shadow()});
        }
      }
      MarkMutated(trace_, e.in[0]);
      return;
    }
    case Op::kListExtend:
    case Op::kSetUpdate:
    case Op::kDictUpdate:
    case Op::kDictMerge:
      if (IsTensor(e.in[1])) throw Break{Reason::unknown_operation, "a tensor is unpacked"};
      if (e.op == Op::kListExtend && AppendItems(trace_, e.in[0], e.in[1], nullptr, Shadow())) {
        note.op.expect.kind = ResultSpec::Kind::kNothing;
        return;
      }
      if ((e.op == Op::kDictMerge || e.op == Op::kDictUpdate) && MergeOpen(trace_, e.in[0], e.in[1])) {
        note.op.expect.kind = ResultSpec::Kind::kNothing;
        return;
      }
      SpecializeDeep(trace_, e.in[1], e.shadows[1], true);
      if (e.op != Op::kListExtend) {
        // After reads the elements of an iterator.
        HasKnownElements(e.in[1]) ? ReadElements(trace_, {e.in[0], e.in[1]}) : ReadElements(trace_, {e.in[0]});
      }
      if (e.op == Op::kSetUpdate) ReadLayout(trace_, e.in[1]);
      if (SourceOf(trace_, e.in[0]).valid()) throw Break{Reason::unknown_mutation, "a display that was begun before"};
      MarkMutated(trace_, e.in[0]);
      note.op.expect.kind = ResultSpec::Kind::kNothing;
      return;
    case Op::kFormatValue:
      SpecializeDeep(trace_, e.in[0], e.shadows[0], false);
      if (e.n > 1) Specialize(trace_, e.in[1], e.shadows[1]);
      return ReadPrinted(trace_, e.in[0], (e.arg & 3) >= 2 ? Printed::kRepr : Printed::kStr);  // !r, !a
    case Op::kGetLen:
      if (PyTuple_CheckExact(e.in[0]) || PyList_CheckExact(e.in[0])) return AdoptElements(trace_, e.in[0]);
      SpecializeDeep(trace_, e.in[0], e.shadows[0], PyDict_Check(e.in[0]));
      return;
    case Op::kMatch:
      if (e.n == 3) {
        static PyObject* const all = InternedName("__dict__");  // counts as all names
        trace_.guards.ReadsName(all);
        if (MatchesByType(e)) return FixType(trace_, e.shadows[0]);
        if (SourceOf(trace_, e.in[0]).valid()) return ReadClassPattern(trace_, e);
        SpecializeWritten(trace_, e.in[0]);
      }
      for (int i = 0; i < e.n; ++i) SpecializeDeep(trace_, e.in[i], e.shadows[i], true);
      return;
    case Op::kExcMatch:
      trace_.guards.Class(Py_TYPE(e.in[0]), trace_.frames.Here());
      return SpecializeDeep(trace_, e.in[1], e.shadows[1], true);
    case Op::kRaise:
      SpecializeAll(trace_, e);
      return;
    case Op::kBeforeWith: {
      PyObject* enter = _PyType_Lookup(Py_TYPE(e.in[0]), interned.enter);
      if (const CallableRow* const row = RowOfEnter(e.in[0]); row != nullptr) {
        Call call{f, note, enter, {e.in[0]}, {e.shadows[0]}, {}};
        return row->special(trace_, call);
      }
      const bool is_known = enter == nullptr || PyFunction_Check(enter) || IsLockOfOwnProperty(trace_, f, e.in[0]);
      if (!is_known) throw Refusal(enter);
      return SpecializeAll(trace_, e);
    }
    case Op::kWithExit:
      return SpecializeAll(trace_, e);
    case Op::kYield:
      note.op.expect.kind = ResultSpec::Kind::kNothing;
      return;
    case Op::kAsync: {
      // `yield from` a generator or iterator of the trace's own. Coroutines are an event loop's business.
      bool coroutine = f.code->co_flags & (CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE);
      ObjectRecord* known = trace_.objects.Find(e.in[0]);
      bool own = known != nullptr && known->state != ObjectRecord::State::kSource;
      if (!coroutine && !IsTensor(e.in[0]) && (own || PyList_Check(e.in[0]) || PyTuple_Check(e.in[0]))) {
        for (int i = 0; i < e.n; ++i) SpecializeDeep(trace_, e.in[i], e.shadows[i], true);
        MarkMutated(trace_, e.in[0]);
        return;
      }
      throw Break{Reason::generator_or_async, ""};
    }
    case Op::kImportName:
      return Import(trace_, f, note, e);
    case Op::kImportFrom:
      return LoadAttribute(trace_, note, e.in[0], Shadow(), e.name);
    case Op::kImportStar:
      throw Break{Reason::import_statement, e.name ? PyUnicode_AsUTF8(e.name) : ""};
    case Op::kDeleteDeref:
    case Op::kDeleteGlobal:
    case Op::kStoreName:
    case Op::kDeleteName:
      throw Break{Reason::unknown_operation, "a variable is deleted, or a class body runs"};
    case Op::kOther:
      // Without operands, it is a step of a class statement.
      throw Break{e.n == 0 ? Reason::class_statement : Reason::unknown_operation, ""};
    default:
      throw Break{Reason::unknown_operation, ""};
  }
}

Call CallOf(Trace& trace, FrameState& f, FrameNote& note, const Event& e) {
  Call call{f, note, e.in[0], {}, {}, {}};
  if (e.op == Op::kCall) {
    for (int i = 1; i < e.n; ++i) {
      call.args.push_back(e.in[i]);
      call.shadows.push_back(e.shadows[i]);
    }
    if (e.kwnames != nullptr) {
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(e.kwnames); ++i) call.names.push_back(PyTuple_GET_ITEM(e.kwnames, i));
    }
    return call;
  }
  AddSpread(trace, e, &call);
  return call;
}

}  // namespace frametap
