// The recorder before an operation: its reads are guarded, and its changes are noted.

#include "absl/container/flat_hash_set.h"
#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/record/callables/getters.h"
#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/fast_paths/repeated_calls.h"
#include "frame_eval/record/numbers/rows.h"
#include "frame_eval/record/objects/cached_properties.h"
#include "frame_eval/record/objects/outside_containers.h"
#include "frame_eval/record/objects/quiet.h"
#include "frame_eval/record/recorder.h"
#include "frame_eval/record/semantics/elements.h"
#include "frame_eval/record/trace/array_nodes.h"
#include "guards/must.h"
#include "guards/objects/known_objects.h"
#include "guards/objects/tensor_door.h"
#include "ir/ops/op_facts.h"
#include "ir/segment/frame_slot.h"

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
static bool DecideMembership(Recorder& r, PyObject* container, PyObject* item, Shadow shadow) {
  constexpr Py_ssize_t kMost = 8;
  const bool is_row = PyTuple_CheckExact(container) || PyList_CheckExact(container);
  if (!PyLong_CheckExact(item) || !(r.LeavesOpen(item, shadow) || (is_row && r.HasOpenItems(container)))) {
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
    r.AdoptElements(container);
  } else {
    r.ForceDeep(container, Shadow(), true);
  }
  r.FixType(shadow);  // an object that cannot be hashed raises
  for (size_t i = 0; i < members.size(); ++i) {
    const Shadow of_member = is_row ? r.ElementShadow(container, static_cast<Py_ssize_t>(i)) : Shadow();
    if (!r.DecideNumbers(item, shadow, members[i], of_member, Py_EQ, false)) return false;
    if (Must(PyObject_RichCompareBool(item, members[i], Py_EQ))) return true;
  }
  return true;
}

// Whether MATCH_CLASS asks for the type of a number alone: `case int()`.
static bool MatchesByType(const Event& e) {
  return Recorder::IsNumber(e.in[0]) && Py_TYPE(e.in[1]) == &PyType_Type && e.arg == 0 &&
         PyTuple_GET_SIZE(e.in[2]) == 0;
}

// MATCH_CLASS of an object that existed before. The instruction reads attributes without an event for each: those in the
// pattern, and those that __match_args__ names.
static void ReadClassPattern(Recorder& r, const Event& e) {
  static PyObject* const class_name = InternedName("__class__");
  static PyObject* const places_name = InternedName("__match_args__");
  const Break refusal{Reason::unknown_operation, "a class pattern"};
  PyObject* const subject = e.in[0];
  RefuseOddNames(Py_TYPE(subject));
  const bool says_its_class =
      _PyType_Lookup(Py_TYPE(subject), class_name) != _PyType_Lookup(&PyBaseObject_Type, class_name);
  if (Py_TYPE(e.in[1]) != &PyType_Type || says_its_class || IsTensor(subject)) throw refusal;
  auto* const type = reinterpret_cast<PyTypeObject*>(e.in[1]);
  r.Touch(subject);
  r.Touch(e.in[1]);
  r.guards().Class(type, r.Here());
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
    const bool is_plain = PyUnicode_CheckExact(name) && Recorder::IsOfPythonClass(subject);
    if (!is_plain || !ReadAttributeInC(r, subject, Interned(name).get())) throw refusal;
  }
}

static bool HasTensor(const Event& e) {
  return std::any_of(e.in, e.in + e.n, [](PyObject* object) { return object != nullptr && IsTensor(object); });
}

// An instruction on tensors: its operands are the arguments of an op.
static void CallOp(Recorder& r, FrameState& f, FrameNote& note, const Event& e) {
  Call call{f, note, nullptr, {}, {}, {}};
  call.args.assign(e.in, e.in + e.n);
  call.shadows.assign(e.shadows, e.shadows + e.n);
  r.TorchCall(note, &call, "");
}

void Recorder::Before(FrameState& f, FrameNote& note, const Event& e) {
  note.expect.Reset();
  note.ForgetOperands();
  note.returned = nullptr;
  note.returned_shadow = Shadow();
  note.nodes_before = node_count();
  note.containers_before = containers_.size();
  aten_.decided = nullptr;
  ForgetArrayCall(note);
  if (!settled_.empty()) [[unlikely]]
    MeetStores(f, e);
  if (has_open_keys_) [[unlikely]]
    MeetOpenKeys(e);
  if (IsIn(kOperators, e.op)) {
    if (ArrayOperator(*this, note, e)) return;
    RefuseForeign(e);
    if (IsIn(kTakesElements, e.op)) {
      for (int i = 0; i < e.n; ++i) MarkAdvanced(e.in[i]);
    }
  }
  switch (e.op) {
    case Op::kLoadGlobal:  // reported before only where code of the program decides
      throw Break{Reason::unknown_operation, "globals or builtins that are not a plain dict"};
    case Op::kUnary:
      if (e.arg == 2) return TruthOf(note, e.in[0], e.shadows[0]);
      if (HasTensor(e)) return CallOp(*this, f, note, e);
      if (ScalarNode(note, e)) return;
      return ForceAll(e);
    case Op::kBinary:
      return BinaryNumbers(note, e);
    case Op::kCompare:
      return CompareValues(note, e.in[0], e.shadows[0], e.in[1], e.shadows[1], e.arg);
    case Op::kIs:
      return CompareIdentity(e.in[0], e.shadows[0], e.in[1], e.shadows[1]);
    case Op::kIsNone:
      return CompareIdentity(e.in[0], e.shadows[0], Py_None, Shadow());
    case Op::kTruth:
      return TruthOf(note, e.in[0], e.shadows[0]);
    case Op::kContains:
      if (!DecideKey(e.in[1], e.in[0], e.shadows[0])) {
        if (DecideMembership(*this, e.in[1], e.in[0], e.shadows[0])) return Force(e.in[1], e.shadows[1]);
        Force(e.in[0], e.shadows[0]);
      }
      Force(e.in[1], e.shadows[1]);
      return Contains(note, e.in[1], e.in[0]);
    case Op::kSubscr:
      return Subscript(note, e.in[0], e.in[1], e.shadows[1], e.shadows[0]);
    case Op::kStoreSubscr:
      return StoreSubscript(note, e.in[1], e.in[2], e.in[0], e.shadows[2], e.shadows[0]);
    case Op::kDeleteSubscr:
      return StoreSubscript(note, e.in[0], e.in[1], nullptr, e.shadows[1], Shadow());
    case Op::kLoadAttr:
    case Op::kLoadMethod:
      LoadAttribute(note, e.in[0], e.shadows[0], e.name);
      if (note.expect.answer != nullptr) f.answer = Py_NewRef(note.expect.answer);
      return;
    case Op::kStoreAttr:
      return StoreAttribute(note, e.in[1], e.name, e.in[0], e.shadows[0]);
    case Op::kDeleteAttr:
      return DeleteAttribute(note, e.in[0], e.name);
    case Op::kCall:
    case Op::kCallEx:
      if (e.op == Op::kCallEx) {
        if (note.passes_on && PassOn(e)) return;
        AdoptElements(e.in[1]);
        if (e.n > 2 && e.in[2] != nullptr) AdoptElements(e.in[2]);
      }
      if (repeated_calls_ && e.op == Op::kCall && PyObject_TypeCheck(e.in[0], Objects().module)) {
        if (Ref<> result = repeated_calls_->Call(note, e)) {
          f.answer = result.Release();
          return;
        }
      }
      return Invoke(CallOf(*this, f, note, e));
    case Op::kStoreGlobal: {
      PyObject* globals = f.function->func_globals;
      const SourceId dict = guards_.Pinned(globals, "G");
      if (Find(globals) == nullptr) {
        AddFresh(globals, Known::State::kOpaque);
      } else if (SourceOf(globals).valid()) {
        FromSource(dict, globals, true);  // given to the function as well: reads of it see what is stored now
      }
      AddEffect(Effect::Kind::kSetGlobal, globals, PyUnicode_AsUTF8(e.name), {e.in[0]}, {e.shadows[0]});
      SetWritten(globals, e.name, e.shadows[0]);
      note.expect.kind = Expect::Kind::kNothing;
      return;
    }
    case Op::kStoreDeref:
      note.expect.kind = Expect::Kind::kNothing;
      return StoreDeref(f, e);
    case Op::kGetIter: {
      PyObject* object = e.in[0];
      Force(object, e.shadows[0]);
      if (IsTensor(object)) {
        ReadTensor(object, true, false);
        return CallOp(*this, f, note, e);
      }
      if (IsMetIterator(object) || PyGen_CheckExact(object)) return Touch(object);  // it is its own iterator
      if (open_iterators_.contains(object)) return;
      const Known* const known = PySet_CheckExact(object) && PySet_GET_SIZE(object) <= 1 ? Find(object) : nullptr;
      if (known != nullptr && known->state == Known::State::kFresh) return FixKeys(object);  // its order reads nothing
      note.marks.makes_iterator = LeavesContentOpen(object);
      if (note.marks.makes_iterator) iterated_.assign(1, object);
      if (note.marks.makes_iterator) return;
      ForceDeep(object, Shadow(), true);
      return ViewRows(*this, object);
    }
    case Op::kForIter: {
      RefuseForeignOperator(e.in[0]);
      Known* known = Find(e.in[0]);
      if (open_iterators_.contains(e.in[0])) {
        known->MutatedIn(epoch_);
        note.expect.kind = Expect::Kind::kOpen;
        return;
      }
      if (known != nullptr && known->state != Known::State::kSource) return MarkMutated(e.in[0]);
      if (PyGen_CheckExact(e.in[0])) return MeetGenerator(e.in[0]);
      TakeNext(note, e.in[0]);
      return;
    }
    case Op::kUnpack:
    case Op::kUnpackEx:
      note.unpacks = e.arg;
      if (IsTensor(e.in[0])) {
        ReadTensor(e.in[0], true, false);
        return CallOp(*this, f, note, e);
      }
      if (IteratesByPlace(e.in[0]) || PyDict_Check(e.in[0])) return AdoptElements(e.in[0]);
      if (IsAnySet(e.in[0])) ReadOrder(e.in[0]);
      return ForceAll(e);
    case Op::kBuildTuple: {
      note.expect.kind = Expect::Kind::kItems;
      note.expect.items.assign(e.shadows, e.shadows + e.n);
      return;
    }
    case Op::kListToTuple:  // also whatever stands behind `*` in a call
      MarkAdvanced(e.in[0]);
      if (IsTensor(e.in[0])) throw Break{Reason::unknown_operation, "a tensor is unpacked"};
      if (PyList_CheckExact(e.in[0])) {
        AdoptElements(e.in[0]);
        const Known* list = Find(e.in[0]);
        if (list == nullptr || list->items.empty()) return;
        note.expect.kind = Expect::Kind::kItems;
        note.expect.items.assign(list->items.begin(), list->items.end());
        return;
      }
      ForceDeep(e.in[0], e.shadows[0], true);
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
        for (int i = 0; i < e.n; ++i) note.expect.items.push_back(KeepOpen(e.in[i], e.shadows[i], &open));
        if (open) note.expect.kind = Expect::Kind::kItems;
        if (e.op == Op::kBuildSlice) note.expect.items.resize(3);
        return;
      }
      if (BuildsByName(e)) {
        const int step = e.op == Op::kBuildMap ? 2 : 1;
        bool open = false;
        for (int i = 0; step == 2 && i < e.n; i += step) Force(e.in[i], e.shadows[i]);
        for (int i = step - 1; i < e.n - 2 + step; i += step) {
          note.expect.items.push_back(KeepOpen(e.in[i], e.shadows[i], &open));
        }
        if (open) note.expect.kind = Expect::Kind::kItems;
        return;
      }
      if (e.op != Op::kBuildSet && e.op != Op::kBuildMap) {
        for (int i = 0; i < e.n; ++i) Force(e.in[i], e.shadows[i]);
        return;
      }
      note.marks.has_open_keys = DecideKeys(e);
      for (int i = 1; e.op == Op::kBuildMap && i < e.n; i += 2) Force(e.in[i], e.shadows[i]);
      std::vector<PyObject*> keys;
      for (int i = 0; i < e.n; i += e.op == Op::kBuildMap ? 2 : 1) {
        RefuseNan(e.in[i]);
        if (IsScalar(e.in[i])) continue;
        RefuseForeignKey(e.in[i]);
        keys.push_back(e.in[i]);
      }
      return ReadDistinct(keys);
    }
    case Op::kListAppend:
    case Op::kSetAdd:
    case Op::kMapAdd: {
      const bool has_key = e.op != Op::kListAppend;
      if (has_key && !AddKey(e.in[0], e.in[1], e.shadows[1])) ForceKey(e.in[1], e.shadows[1]);
      note.expect.kind = Expect::Kind::kNothing;
      if (e.op == Op::kListAppend && AppendItems(e.in[0], nullptr, e.in[1], e.shadows[1])) return;
      // A comprehension that was begun before the segment.
      if (e.op == Op::kListAppend && AppendOutside(e.in[0], nullptr, e.in[1], e.shadows[1])) return;
      if (e.op == Op::kMapAdd && StoreOwn(e.in[0], e.in[1], e.in[2], e.shadows[2])) return;
      for (int i = has_key ? 2 : 1; i < e.n; ++i) Force(e.in[i], e.shadows[i]);
      if (has_key) ReadKey(e.in[0], e.in[1]);
      if (SourceOf(e.in[0]).valid()) {
        Own(e.in[0]);
        if (e.op == Op::kMapAdd) {
          AddEffect(Effect::Kind::kSetItem, e.in[0], "", {e.in[1], e.in[2]}, {Shadow(), Shadow()});
        } else {
          AddEffect(Effect::Kind::kCall, e.in[0], "add", {e.in[1]}, {Shadow()});
        }
      }
      MarkMutated(e.in[0]);
      return;
    }
    case Op::kListExtend:
    case Op::kSetUpdate:
    case Op::kDictUpdate:
    case Op::kDictMerge:
      if (IsTensor(e.in[1])) throw Break{Reason::unknown_operation, "a tensor is unpacked"};
      if (e.op == Op::kListExtend && AppendItems(e.in[0], e.in[1], nullptr, Shadow())) {
        note.expect.kind = Expect::Kind::kNothing;
        return;
      }
      if ((e.op == Op::kDictMerge || e.op == Op::kDictUpdate) && MergeOpen(e.in[0], e.in[1])) {
        note.expect.kind = Expect::Kind::kNothing;
        return;
      }
      ForceDeep(e.in[1], e.shadows[1], true);
      if (e.op != Op::kListExtend) {
        // After reads the elements of an iterator.
        HasKnownElements(e.in[1]) ? ReadElements({e.in[0], e.in[1]}) : ReadElements({e.in[0]});
      }
      if (e.op == Op::kSetUpdate) ReadLayout(e.in[1]);
      if (SourceOf(e.in[0]).valid()) throw Break{Reason::unknown_mutation, "a display that was begun before"};
      MarkMutated(e.in[0]);
      note.expect.kind = Expect::Kind::kNothing;
      return;
    case Op::kFormatValue:
      ForceDeep(e.in[0], e.shadows[0], false);
      if (e.n > 1) Force(e.in[1], e.shadows[1]);
      return ReadPrinted(e.in[0], (e.arg & 3) >= 2 ? Printed::kRepr : Printed::kStr);  // !r, !a
    case Op::kGetLen:
      if (PyTuple_CheckExact(e.in[0]) || PyList_CheckExact(e.in[0])) return AdoptElements(e.in[0]);
      ForceDeep(e.in[0], e.shadows[0], PyDict_Check(e.in[0]));
      return;
    case Op::kMatch:
      if (e.n == 3) {
        static PyObject* const all = InternedName("__dict__");  // counts as all names
        guards_.ReadsName(all);
        if (MatchesByType(e)) return FixType(e.shadows[0]);
        if (SourceOf(e.in[0]).valid()) return ReadClassPattern(*this, e);
        ForceWritten(e.in[0]);
      }
      for (int i = 0; i < e.n; ++i) ForceDeep(e.in[i], e.shadows[i], true);
      return;
    case Op::kExcMatch:
      guards_.Class(Py_TYPE(e.in[0]), Here());
      return ForceDeep(e.in[1], e.shadows[1], true);
    case Op::kRaise:
      ForceAll(e);
      return;
    case Op::kBeforeWith: {
      static PyObject* enter_name = InternedName("__enter__");
      PyObject* enter = _PyType_Lookup(Py_TYPE(e.in[0]), enter_name);
      const bool is_known = enter == nullptr || PyFunction_Check(enter) || IsLockOfOwnProperty(*this, f, e.in[0]);
      if (!is_known) throw Refusal(enter);
      return ForceAll(e);
    }
    case Op::kWithExit:
      return ForceAll(e);
    case Op::kYield:
      note.expect.kind = Expect::Kind::kNothing;
      return;
    case Op::kAsync: {
      // `yield from` a generator or iterator of the trace's own. Coroutines are an event loop's business.
      bool coroutine = f.code->co_flags & (CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE);
      Known* known = Find(e.in[0]);
      bool own = known != nullptr && known->state != Known::State::kSource;
      if (!coroutine && !IsTensor(e.in[0]) && (own || PyList_Check(e.in[0]) || PyTuple_Check(e.in[0]))) {
        for (int i = 0; i < e.n; ++i) ForceDeep(e.in[i], e.shadows[i], true);
        MarkMutated(e.in[0]);
        return;
      }
      throw Break{Reason::generator_or_async, ""};
    }
    case Op::kImportName:
      return Import(f, note, e);
    case Op::kImportFrom:
      return LoadAttribute(note, e.in[0], Shadow(), e.name);
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

Call CallOf(Recorder& recorder, FrameState& f, FrameNote& note, const Event& e) {
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
  AddSpread(recorder, e, &call);
  return call;
}

}  // namespace frametap
