// The recorder's two events: before an operation, what it reads is guarded and what it changes is noted; after it, what it
// gave is known.

#include "absl/container/flat_hash_set.h"
#include "frame_eval/array_nodes.h"
#include "frame_eval/cached_properties.h"
#include "frame_eval/callables/getters.h"
#include "frame_eval/callables/table.h"
#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/elements.h"
#include "frame_eval/known_objects.h"
#include "frame_eval/outside_containers.h"
#include "frame_eval/quiet.h"
#include "frame_eval/recorder.h"
#include "frame_eval/repeated_calls.h"
#include "frame_eval/rows.h"
#include "guards/must.h"
#include "guards/tensor_door.h"
#include "ir/frame_slot.h"
#include "ir/ops/op_facts.h"

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
    if (PyObject_RichCompareBool(item, members[i], Py_EQ) == 1) return true;
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
    default:
      throw Break{Reason::unknown_operation, ""};
  }
}

// A call of it is the call of a function of Python code, and of nothing else. (Before has refused instances of classes whose
// __call__ is C code.)
static bool IsPythonCode(PyObject* callable) {
  return PyFunction_Check(callable) ||
         (PyMethod_Check(callable) && PyFunction_Check(PyMethod_GET_FUNCTION(callable))) ||
         Py_TYPE(callable)->tp_call == Objects().module->tp_call;
}

// Returns nothing where the result needs no special treatment.
std::optional<Shadow> Recorder::MarkedResult(FrameState& f, FrameNote& note, const Event& e, PyObject* result) {
  if (note.marks.calls_function) return aten_.pending ? Shadow() : FunctionResult(note, e, result);
  if (note.marks.makes_iterator) OpenIteratorOver(result);
  if (note.marks.follows_kernel) {
    KernelResult(note);
    return TorchResult(f, note, e, result);
  }
  if (note.marks.makes_parameter) return ParameterResult(result);
  if (note.marks.has_open_keys) {
    AdoptResult(result);
    KeepKeys(result, e);
    return Shadow();
  }
  return std::nullopt;
}

Shadow Recorder::After(FrameState& f, FrameNote& note, const Event& e, PyObject* result) {
  if (note.marks.switches_inference) AtenRecorder::SeeEveryOp(true);
  if (IsArrayCall(note)) {
    // N7 of array_nodes.h. The result is an object of the program's, whether or not the segment ends before it.
    if (!store_.backend().calls_numpy()) throw Break{Reason::numpy_code, "NumPy under a backend that compiles"};
    return ArrayResult(*this, note, result, [this](Shadow number) { return NumberValue(number); });
  }
  if (!note.open.empty() || note.is_index) LinkNumbers(note, e, result);
  // Switches of the thread's state are C functions that do not dispatch. (Python code is not one either. Its calls
  // come here as well, unless it belongs to an operation that is not examined.)
  if ((e.op == Op::kCall || e.op == Op::kCallEx) &&
      (note.opaque_operation || (note.expect.kind != Expect::Kind::kTorch && !IsPythonCode(e.in[0])))) {
    ReadState();
  }
  if (containers_.size() > note.containers_before) DropContainers(note.containers_before);
  if (repeated_calls_ && e.op == Op::kCall) repeated_calls_->Returned(note, e, result);
  switch (e.op) {
    case Op::kLoadGlobal:
    case Op::kLoadName: {
      Shadow out;
      if (e.op == Op::kLoadName && e.arg == 0) throw Break{Reason::class_statement, ""};
      Event global = e;
      if (e.op == Op::kLoadName) global.arg = e.arg - 1;
      LoadGlobal(f, note, global, result, &out);
      return out;
    }
    case Op::kLoadDeref:
      return LoadDeref(f, e.arg, result);
    case Op::kLoadConst:
      MeetConstant(result);
      return Shadow();
    case Op::kLoadClosure:
      ShareCell(f, e.arg);
      MeetCell(f, e.arg);
      if (Find(result) != nullptr) return Shadow();
      if (KindOfSlot(f.code, e.arg) == SlotKind::kFree)
        return FromSource(CellSource(f, e.arg), result, !is_base(f) && IsFixedFunction(f));
      if (is_base(f)) {
        // A closure over the entry frame's variable: what it holds is known from the entry on.
        PyObject* content = PyCell_GET(result);
        Shadow shadow;
        if (content != nullptr) {
          shadow =
              FromSource(guards_.Cell(FrameSlot(level(), e.arg), PyUnicode_AsUTF8(SlotName(f.code, e.arg)), content),
                         content, false);
        }
        if (began_at_break_) {
          FromSource(CellSource(f, e.arg), result, false);
          Find(result)->items.assign(1, shadow);
          return Shadow();
        }
        AddFresh(result).items.assign(1, shadow);
        base_cells_.push_back(result);
      } else {
        throw Break{Reason::unknown_operation, "a closure is passed on"};
      }
      return Shadow();
    case Op::kMakeFunction:
      AddFresh(result, Known::State::kOpaque);
      return Shadow();
    case Op::kMakeCell: {
      // The parameter's shadow goes with its value into the cell.
      const Shadow content = f.shadows[e.arg];
      if ((f.code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)) != 0) {
        AddFresh(result).items.assign(1, content);  // the frame moves, and its shadows are kept apart
        return Shadow();
      }
      cells_.push_back(content);
      return Shadow{Shadow::Kind::kCell, static_cast<uint32_t>(cells_.size() - 1)};
    }
    case Op::kStoreDeref:
      if (f.shadows[e.arg].kind == Shadow::Kind::kCell) cells_[f.shadows[e.arg].id] = e.shadows[0];
      return Shadow();
    case Op::kCall:
      if (!IsPythonCode(e.in[0])) ReadTableOfIterator(*this, e, result);  // else its frame is seen
      break;
    case Op::kForIter:
    case Op::kSetUpdate:
      ReadTableOfIterator(*this, e, result);
      break;
    default:
      break;
  }
  if (result == nullptr) return Shadow();
  if (!note.for_new.empty() && note.called_type != nullptr && Py_TYPE(result) != note.called_type) {
    for (const Shadow shadow : note.for_new) Force(nullptr, shadow);  // its own class has initialised it
  }
  if (checkpoint_ && checkpoint_->caller == &f) CheckpointResult(note, result);
  if (note.marks.any()) {
    if (const std::optional<Shadow> shadow = MarkedResult(f, note, e, result)) return *shadow;
  }
  if (note.expect.kind == Expect::Kind::kTorch && !(note.returned != nullptr && note.returned == result)) {
    return TorchResult(f, note, e, result);
  }
  if (note.returned == result && note.expect.kind == Expect::Kind::kAny) {
    if (note.returned_shadow.kind == Shadow::Kind::kNone) AdoptResult(result);
    return note.returned_shadow;
  }
  switch (note.expect.kind) {
    case Expect::Kind::kShadow:
      return note.expect.shadow;
    case Expect::Kind::kSource:
      return FromSource(note.expect.source, result, note.expect.pinned);
    case Expect::Kind::kItems: {
      if (IsConstantTuple(result) || Find(result) != nullptr) return Shadow();  // t[:], t + (): the very one
      if (PyDict_CheckExact(result)) {
        AddFresh(result);
        PyObject *key, *value;
        for (Py_ssize_t at = 0, i = 0; PyDict_Next(result, &at, &key, &value); ++i) {
          const Shadow shadow = note.expect.items[static_cast<size_t>(i)];
          if (shadow.kind != Shadow::Kind::kNone) KeepValue(result, key, shadow);
        }
        return Shadow();
      }
      AddFresh(result).items.assign(note.expect.items.begin(), note.expect.items.end());
      return Shadow();
    }
    case Expect::Kind::kData: {
      const Arg of = Arg::Of(ValueId(note.expect.shadow.id));
      const at::Tensor& tensor = TensorOf(result);
      aten_.Bind(tensor, aten_.AddOpNode("aten::data", "", {of}, Type::Of(tensor)));
      return Shadow();
    }
    case Expect::Kind::kOpen:
      return TakeOpen(e.in[0], result);
    case Expect::Kind::kTaken:
      return AdoptTaken(result, taken_);
    case Expect::Kind::kPinned:
      // A method is made by each read, unless it is one that was kept.
      if (IsTensor(result) || ((PyMethod_Check(result) || PyCFunction_Check(result)) && Py_REFCNT(result) == 1)) {
        return AdoptResult(result);
      }
      AdoptPinned(result, Py_TYPE(result)->tp_name);
      return Shadow();
    case Expect::Kind::kNothing:
      return Shadow();
    default:
      break;
  }
  if (e.op == Op::kUnpack || e.op == Op::kUnpackEx) {
    if (IteratesByPlace(e.in[0])) return UnpackedItem(note, e, result);
    return AdoptResult(result);
  }
  // The value that a defaultdict of the trace has made for a missing key (Subscript).
  if (e.op == Op::kSubscr && PyDict_Check(e.in[0]) && PyType_IsSubtype(Py_TYPE(e.in[0]), DefaultDict()) &&
      !SourceOf(e.in[0]).valid()) {
    return AdoptMade(result);
  }
  if (e.op == Op::kLoadMethod && e.arg == 1) return Shadow();  // a class-level function: fixed with the type
  if (e.op == Op::kForIter || e.op == Op::kGetIter) return AdoptResult(result);
  return AdoptResult(result);
}

// Item e.arg of the object that an instruction unpacks; with a star among the names, one of them is a list of its own.
Shadow Recorder::UnpackedItem(const FrameNote& note, const Event& e, PyObject* result) {
  Py_ssize_t at = e.arg;
  if (e.op == Op::kUnpackEx) {
    const int before = note.unpacks & 0xff, after = note.unpacks >> 8;
    if (e.arg == before) {
      Known& middle = AddFresh(result);
      bool open = false;
      for (Py_ssize_t i = 0; i < PyList_GET_SIZE(result); ++i) {
        middle.items.push_back(KeepOpen(PyList_GET_ITEM(result, i), ElementShadow(e.in[0], before + i), &open));
      }
      if (!open) middle.items.clear();
      return Shadow();
    }
    if (e.arg > before) at = PySequence_Fast_GET_SIZE(e.in[0]) - after + (e.arg - before - 1);
  }
  const Shadow shadow = ElementShadow(e.in[0], at);
  return shadow.kind != Shadow::Kind::kNone ? shadow : AdoptResult(result);
}

Shadow Recorder::TorchResult(FrameState&, FrameNote& note, const Event& e, PyObject* result) {
  if (aten_.pending) return Shadow();
  if (note.listed != nullptr) return ListElements(note, result);
  auto read_arguments = [&](bool strides) {
    for (int i = 0; i < e.n; ++i) ReadAllTensors(e.in[i], strides);
  };
  size_t made = node_count() - note.nodes_before;
  if (IsTensor(result)) {
    AtenRecorder::KnownTensor* known = aten_.Find(TensorOf(result));
    if (known == nullptr) throw Break{Reason::tensor_from_nowhere, ""};
    const bool is_plain = Py_TYPE(result) == Objects().tensor || Py_TYPE(result) == Objects().parameter;
    if (!known->source.valid() && !is_plain) {
      throw Break{Reason::tensor_subclass, Py_TYPE(result)->tp_name};  // given by the binding, past the dispatcher
    }
    if (known->value.valid() && TensorOf(result).requires_grad() &&
        !aten_.graph().value(known->value).type.requires_grad) {
      throw Break{Reason::tensor_attribute, "requires_grad=True"};  // set by the binding, past the dispatcher
    }
    bool is_argument = false;
    for (int i = 0; i < e.n; ++i) is_argument = is_argument || e.in[i] == result;
    bool wrote = made > 0 && aten_.graph().nodes.back().op && aten_.graph().nodes.back().op->schema().is_mutable();
    // No op, or an op that gave its argument back: the binding has looked at sizes, strides or dtype and decided.
    const bool has_decided = made == 0 || (is_argument && !wrote);
    if (has_decided ? !GivesBack(note, e, result) : !IsKnownToBeNew(note, e, *known)) read_arguments(true);
    return Shadow();
  }
  if (result == Py_None) return Shadow();
  if (IsOfNumPy(result)) throw Break{Reason::numpy_code, "an array that torch gives"};
  if (IsScalar(result) && made == 1 && aten_.graph().nodes.back().op &&
      FactsOf(*aten_.graph().nodes.back().op).scalar_from_data) {
    const Node& item = aten_.graph().nodes.back();
    const ValueId number = item.outputs[0];
    Shadow shadow{Shadow::Kind::kValue, number.raw()};
    if (item.args.size() == 1 && item.args[0].kind == Arg::Kind::kValue) {
      if (const auto term = IntInTensor(item.args[0].value)) shadow = term->shadow;
      if (shadow.kind == Shadow::Kind::kNone) return shadow;
    }
    const bool is_float = PyFloat_CheckExact(result);
    if (!note.marks.converts || is_float == (aten_.graph().value(number).type.kind == Type::Kind::kFloat))
      return shadow;
    return AddNumber(is_float ? ScalarOp::kFloatOf : ScalarOp::kIntOf, {{nullptr, shadow}});
  }
  if (IsScalar(result)) {
    // A fact of the arguments that is not their data: data would have been seen as an op.
    read_arguments(true);
    return Shadow();
  }
  // The number of tensors that a kernel in Python returns follows from its guarded reads.
  if ((PyTuple_Check(result) || PyList_Check(result)) && !note.marks.follows_kernel) {
    bool list_op = made == 0;
    for (size_t i = note.nodes_before; i < node_count(); ++i) {
      const Node& node = aten_.graph().nodes[i];
      if (!node.op || !FactsOf(*node.op).list_result) continue;
      list_op = true;
      RefuseUnknownLength(node);
    }
    if (list_op && made > 0 && sizes_open()) {
      for (size_t i = note.nodes_before; i < node_count(); ++i) {
        const Node& node = aten_.graph().nodes[i];
        if (node.op && FactsOf(*node.op).list_result) ReadListLength(node, e);
      }
    } else if (list_op) {
      read_arguments(made == 0);
    }
  }
  return AdoptResult(result);
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
