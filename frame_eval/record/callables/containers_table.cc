// Methods of the builtin containers and of the containers of `collections`.
#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/cpython/loop_head.h"
#include "frame_eval/record/callables/getters.h"
#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/objects/force.h"
#include "frame_eval/record/objects/identity.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/objects/open_keys.h"
#include "frame_eval/record/objects/outside_containers.h"
#include "frame_eval/record/objects/own_dicts.h"
#include "frame_eval/record/objects/quiet.h"
#include "frame_eval/record/semantics/calls.h"
#include "frame_eval/record/semantics/containers.h"
#include "frame_eval/record/semantics/foreign_operators.h"
#include "frame_eval/record/semantics/iterators.h"
#include "frame_eval/record/semantics/mapping_proxies.h"
#include "frame_eval/record/semantics/mutations.h"
#include "guards/cpython/deque_view.h"
#include "guards/objects/torch_tensor.h"
#include "guards/throw_if_null.h"

namespace frametap {
namespace {

// dict.get(key[, default]) and dict.__getitem__: one key is read.
void DictGet(Trace& trace, Call& call) {
  PyObject* dict = call.args.empty() ? nullptr : call.args[0];
  if (dict != nullptr && DictBelow(trace, dict) != nullptr) dict = call.args[0] = DictBelow(trace, dict);
  ObjectRecord* known = dict != nullptr ? trace.objects.Find(dict) : nullptr;
  const bool is_source = known != nullptr && known->state == ObjectRecord::State::kSource && !known->adopted;
  PyObject* const key = call.args.size() < 2 ? nullptr : call.args[1];
  if (key == nullptr || !(IsPlainKey(key) || (is_source && IsFollowedKey(trace, key)))) {
    SpecializeArguments(trace, call, 0, true);
    return ReadIdentities(trace, Reads::kKey, call);
  }
  if (!DecideKey(trace, dict, key, call.shadows[1])) SpecializeDeep(trace, key, call.shadows[1], false);
  for (size_t i = 2; i < call.args.size(); ++i) Specialize(trace, call.args[i], call.shadows[i]);
  known = trace.objects.Find(dict);
  Shadow* written = StoredItem(trace, dict, key);
  if (!is_source && written == nullptr) return;
  GuardTypeOrIdentity(trace, dict);
  if (written == nullptr && PyDict_CheckExact(dict) && IsScalar(call.args[1]))
    written = WrittenShadow(trace, dict, call.args[1]);
  if (written != nullptr) return call.note.op.expect.SetShadow(*written);
  RefuseWrittenDict(trace, dict);
  PyObject* value = ItemQuietly(dict, call.args[1]);
  if (value == nullptr) return trace.guards.Absent(known->source, call.args[1], trace.frames.Here());
  call.note.op.expect.SetSource(trace.guards.Child(known->source, Accessor::kKey, 0, call.args[1], value),
                                known->pinned);
}

// dict.setdefault(key, default): a read, if the key is there.
void SetDefault(Trace& trace, Call& call) {
  const bool has_key = call.args.size() == 3 && call.names.empty() && PyDict_CheckExact(call.args[0]);
  if (has_key && IsPlainKey(call.args[1]) && ItemQuietly(call.args[0], call.args[1]) != nullptr)
    return DictGet(trace, call);
  if (call.args.size() > 1) {
    AdoptElements(trace, call.args[0]);
    ReadKey(trace, call.args[0], call.args[1]);
  }
  Mutate(trace, call, *FindCallable(call.callable));
}

// Records a view that a loop takes apart. Returns false for other calls: C code may get their view, and read all that is in it.
bool ViewInLoop(Trace& trace, Call& call) {
  if (call.args.size() != 1 || CallSiteOf(call.f).callable != call.callable) return false;
  return LoopTakesResult(call.f.code, call.f.offset) && LoopOver(trace, call.args[0]);
}

// A view of a dict of the trace whose numbers stay open (own_dicts/V3).
bool ViewsOpen(Trace& trace, const Call& call) {
  return trace.objects.has_open_views && call.args.size() == 1 && HoldsOpen(trace, call.args[0]);
}

void ViewValues(Trace& trace, Call& call) {
  if (call.args.size() == 1 && ViewValues(trace, call.args[0])) return;
  if (!ViewsOpen(trace, call) && !ViewInLoop(trace, call)) SpecializeArguments(trace, call, 0, true);
}

void ViewItems(Trace& trace, Call& call) {
  if (!ViewsOpen(trace, call) && !ViewInLoop(trace, call)) SpecializeArguments(trace, call, 0, true);
}

// operator.setitem, operator.delitem
void StoreItem(Trace& trace, Call& call) {
  const bool is_set = FindCallable(call.callable)->name == std::string_view("setitem");
  if (call.args.size() != (is_set ? 3 : 2) || !call.names.empty()) throw Refusal(call.callable);
  for (size_t i = 0; i < 2; ++i) RefuseForeignOperator(call.args[i]);
  if (!IsTensor(call.args[0]) && IsForeign(trace, call.args[0])) throw Refusal(call.callable);
  RefuseForeignKey(call.args[1]);
  StoreSubscript(trace, call.note, call.args[0], call.args[1], is_set ? call.args[2] : nullptr, call.shadows[1],
                 is_set ? call.shadows[2] : Shadow());
  call.note.op.is_index = is_set && IsTensor(call.args[2]);
}

// x.__contains__(item), operator.contains(x, item)
void Contains(Trace& trace, Call& call) {
  if (call.args.size() != 2) throw Break{Reason::unknown_operation, "__contains__"};
  RefuseForeignOperator(call.args[0]);
  Specialize(trace, call.args[0], call.shadows[0]);
  const bool is_tensor = IsTensor(call.args[0]);
  if (IsDeque(call.args[0]) || (!is_tensor && IsForeign(trace, call.args[0])))
    SpecializeDeep(trace, call.args[0], Shadow(), false);
  if (!DecideKey(trace, call.args[0], call.args[1], call.shadows[1])) Specialize(trace, call.args[1], call.shadows[1]);
  Contains(trace, call.note, call.args[0], call.args[1]);
}

// operator.is_, operator.is_not
void Is(Trace& trace, Call& call) {
  if (call.args.size() == 2) CompareIdentity(trace, call.args[0], call.shadows[0], call.args[1], call.shadows[1]);
}

// operator.truth, operator.not_
void Truth(Trace& trace, Call& call) {
  if (call.args.size() != 1) throw Refusal(call.callable);
  RefuseForeignOperator(call.args[0]);
  if (!IsTensor(call.args[0]) && IsForeign(trace, call.args[0])) throw Refusal(call.callable);
  TruthOf(trace, call.note, call.args[0], call.shadows[0]);
}

template <int py_compare_op>
void Compare(Trace& trace, Call& call) {
  if (call.args.size() != 2) throw Break{Reason::unknown_operation, "a comparison"};
  for (PyObject* arg : call.args) RefuseForeignOperator(arg);
  CompareValues(trace, call.note, call.args[0], call.shadows[0], call.args[1], call.shadows[1], py_compare_op);
}

// list.sort(key=…, reverse=…): on one that existed before, replay sorts again, which must run no code.
void Sort(Trace& trace, Call& call) {
  if (call.args.empty() || !PyList_CheckExact(call.args[0])) throw Break{Reason::unknown_callable, "sort"};
  PyObject* list = call.args[0];
  SpecializeArguments(trace, call, 1, false);
  ObjectRecord* known = trace.objects.Find(list);
  const bool is_source = known != nullptr && known->state == ObjectRecord::State::kSource;
  bool scalars = true;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    PyObject* element = PyList_GET_ITEM(list, i);
    if (IsTensor(element)) throw Break{Reason::value_of_tensor, "sort"};
    scalars = scalars && IsScalar(element);
  }
  if (is_source && (!scalars || !call.names.empty())) throw Break{Reason::unknown_mutation, "list.sort"};
  BeginMutation(trace, list);
  if (!scalars) SpecializeDeep(trace, list, Shadow(), false);
  ReadCallbacks(trace, call);
  ReadIdentities(trace, Reads::kKeys, call);
  if (is_source) AddEffect(trace, Effect::Kind::kCall, list, "sort", {}, {});
}

// Methods of a deque. One from outside may grow, which reads nothing of it; nothing is read of it then any more: what is
// in it depends on its maxlen.
void ChangeDeque(Trace& trace, Call& call) {
  ObjectRecord* known = call.args.empty() ? nullptr : trace.objects.Find(call.args[0]);
  if (known == nullptr) throw Break{Reason::unknown_mutation, "a deque that existed before"};
  if (known->state == ObjectRecord::State::kSource) {
    const char* const name = FindCallable(call.callable)->name;
    const bool grows = std::strcmp(name, "append") == 0 || std::strcmp(name, "appendleft") == 0;
    if (!grows || call.args.size() != 2 || !call.names.empty() || !IsDeque(call.args[0])) {
      throw Break{Reason::unknown_mutation, "a deque that existed before"};
    }
    GuardTypeOrIdentity(trace, call.args[0]);
    AddEffect(trace, Effect::Kind::kCall, call.args[0], name, {call.args[1]}, {call.shadows[1]});
    return NoteOutsideChange(trace, call.args[0]);
  }
  SpecializeArguments(trace, call, 1, true);
  if (call.args.size() > 1 && std::strcmp(FindCallable(call.callable)->name, "remove") == 0) {
    throw Break{Reason::unknown_mutation, "deque.remove"};
  }
  MarkMutated(trace, call.args[0]);
}

// Whether a list holds numbers, strings and tuples of them alone, so that comparing its items runs no code.
bool HoldsPlainItems(PyObject* row) {
  if (!PyList_CheckExact(row) && !PyTuple_CheckExact(row)) return false;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(row); ++i) {
    if (!IsPlainKey(PySequence_Fast_GET_ITEM(row, i))) return false;
  }
  return true;
}

// Records the comparisons of a binary search for a number that is not fixed, in a row that is. Returns false if one of them
// cannot be expressed.
bool DecideSearch(Trace& trace, PyObject* row, PyObject* item, Shadow shadow, bool is_right) {
  Py_ssize_t low = 0, high = PySequence_Fast_GET_SIZE(row);
  while (low < high) {
    const Py_ssize_t middle = (low + high) / 2;
    PyObject* const other = PySequence_Fast_GET_ITEM(row, middle);
    PyObject *const a = is_right ? item : other, *const b = is_right ? other : item;
    const Shadow of_a = is_right ? shadow : Shadow(), of_b = is_right ? Shadow() : shadow;
    if (!IsNumber(other) || !DecideNumbers(trace, a, of_a, b, of_b, Py_LT, false)) return false;
    const bool is_less = Must(PyObject_RichCompareBool(a, b, Py_LT));
    is_less == is_right ? high = middle : low = middle + 1;
  }
  return true;
}

// bisect.bisect(row, item[, low, high])
void Bisect(Trace& trace, Call& call) {
  const bool is_plain = call.args.size() >= 2 && HoldsPlainItems(call.args[0]) && IsPlainKey(call.args[1]);
  if (!is_plain || !call.names.empty()) throw Refusal(call.callable);
  if (call.args.size() == 2 && LeavesOpen(trace, call.args[1], call.shadows[1])) {
    SpecializeDeep(trace, call.args[0], call.shadows[0], false);
    const bool is_right = FindCallable(call.callable)->name == std::string_view("bisect_right");
    if (DecideSearch(trace, call.args[0], call.args[1], call.shadows[1], is_right)) return;
  }
  SpecializeArguments(trace, call, 0, false);
}

// heapq.heappush(heap, item) and its like, on a list of the trace's own.
void ChangeHeap(Trace& trace, Call& call) {
  const ObjectRecord* known = call.args.empty() ? nullptr : trace.objects.Find(call.args[0]);
  const bool is_own =
      known != nullptr && known->state != ObjectRecord::State::kSource && PyList_CheckExact(call.args[0]);
  const bool is_plain = is_own && HoldsPlainItems(call.args[0]) && call.names.empty() &&
                        (call.args.size() == 1 || IsPlainKey(call.args[1]));
  if (!is_plain) throw Refusal(call.callable);
  SpecializeArguments(trace, call, 0, false);
  MarkMutated(trace, call.args[0]);
}

// Whether C code counts in the table without asking its class.
bool CountsInC(PyObject* table) {
  static PyObject* const name = InternedName("get");
  return PyDict_Check(table) && HasPlainStore(table) &&
         _PyType_Lookup(Py_TYPE(table), name) == _PyType_Lookup(&PyDict_Type, name);
}

// Records the reading and the store of one key of a Counter that existed before, as by Python code.
void AddCount(Trace& trace, Call& call, PyObject* key, long count) {
  PyObject* const table = call.args[0];
  FrameNote note;
  Call read{call.f, note, call.callable, {table, key}, {Shadow(), Shadow()}, {}};
  DictGet(trace, read);
  const Ref<> more = Must(PyLong_FromLong(count));
  PyObject* const before = ItemQuietly(table, key);
  if (before != nullptr && !PyLong_CheckExact(before)) throw Refusal(call.callable);
  Shadow shadow;
  Ref<> sum = Ref<>::New(more.get());
  if (before != nullptr) {
    shadow = AddNumber(trace, BuiltinOp::kIntAdd,
                       {{before, ResultOf(trace, note).value_or(Shadow())}, {more.get(), Shadow()}});
    sum = Must(PyNumber_Add(before, more.get()));
  }
  StoreSubscript(trace, note, table, key, sum.get(), Shadow(), shadow);
}

// Returns the elements of a tuple, list or string, each once and in order, with how often it occurs. All are plain keys.
std::vector<std::pair<Ref<>, long>> Counts(Trace& trace, const Call& call) {
  const Ref<> elements = Must(PySequence_Fast(call.args[1], ""));
  std::vector<std::pair<Ref<>, long>> counts;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(elements.get()); ++i) {
    PyObject* const key = PySequence_Fast_GET_ITEM(elements.get(), i);
    if (!IsPlainKey(key)) throw Refusal(call.callable);
    const auto is_equal = [&](const auto& one) { return PlainKey(trace, one.first.get()) == PlainKey(trace, key); };
    const auto at = std::find_if(counts.begin(), counts.end(), is_equal);
    if (at != counts.end()) {
      ++at->second;
    } else {
      counts.emplace_back(Ref<>::New(key), 1);
    }
  }
  return counts;
}

// collections.Counter(iterable), counter.update(iterable)
void CountElements(Trace& trace, Call& call) {
  ObjectRecord* known = call.args.size() == 2 ? trace.objects.Find(call.args[0]) : nullptr;
  if (known == nullptr) throw Refusal(call.callable);
  if (known->state == ObjectRecord::State::kSource) {
    PyObject* const row = call.args[1];
    const bool is_row = PyTuple_CheckExact(row) || PyList_CheckExact(row) || PyUnicode_CheckExact(row);
    if (!is_row || !CountsInC(call.args[0])) throw Refusal(call.callable);
    SpecializeArguments(trace, call, 1, false);
    for (const auto& [key, count] : Counts(trace, call)) AddCount(trace, call, key.get(), count);
    return;
  }
  SpecializeArguments(trace, call, 0, true);
  ReadIdentities(trace, Reads::kKeys, call);
  MarkMutated(trace, call.args[0]);
}

}  // namespace

void LoadContainers() {
  AddRows("builtins", "list", Conduct::kMutates, {"append", "extend", "insert", "pop", "clear", "reverse"});
  AddRows("builtins", "list", Conduct::kMutates, {"remove"}, Reads::kSearch);
  for (const char* type : {"list", "tuple"}) {
    AddRows("builtins", type, Conduct::kPureObjects, {"count", "index"}, Reads::kSearch);
  }
  const std::pair<const char*, const char*> dicts[] = {{"builtins", "dict"}, {"collections", "OrderedDict"}};
  for (const auto& [module, type] : dicts) {
    AddRows(module, type, Conduct::kMutates, {"popitem", "clear"});
    AddRows(module, type, Conduct::kMutates, {"pop", "setdefault", "move_to_end"}, Reads::kKey);
    if (type == std::string_view("dict")) AddSpecial(module, type, "setdefault", SetDefault);
    AddRows(module, type, Conduct::kMutates, {"update"}, Reads::kKeys);
    AddRows(module, type, Conduct::kPureObjects, {"copy", "items", "keys", "values"});
    AddRows(module, type, Conduct::kPureObjects, {"fromkeys", "__init__"}, Reads::kKeys);
  }
  AddRows("builtins", "dict", Conduct::kPureObjects, {"__iter__", "__len__"});
  AddRows("collections", "", Conduct::kPureObjects, {"OrderedDict", "defaultdict"}, Reads::kKeys);
  AddRows("collections", "", Conduct::kPureObjects, {"deque"});
  AddRows("builtins", "set", Conduct::kMutates, {"pop", "clear"});
  AddRows("builtins", "set", Conduct::kMutates, {"add", "discard", "remove"}, Reads::kKey);
  AddRows("builtins", "set", Conduct::kMutates, {"update"}, Reads::kKeys);
  for (const char* type : {"set", "frozenset"}) {
    AddRows("builtins", type, Conduct::kPureObjects, {"copy"});
    AddRows("builtins", type, Conduct::kPureObjects, {"union"}, Reads::kKeys);
    AddRows("builtins", type, Conduct::kPureObjects,
            {"difference", "intersection", "symmetric_difference", "issubset", "issuperset", "isdisjoint"},
            Reads::kCommon);
  }
  AddSpecial("builtins", "list", "sort", Sort);
  AddSpecial("_collections", "", "_count_elements", CountElements);
  for (const char* name : {"bisect_left", "bisect_right"}) AddSpecial("_bisect", "", name, Bisect);
  for (const char* name : {"heappush", "heappop", "heapify", "heappushpop", "heapreplace"}) {
    AddSpecial("_heapq", "", name, ChangeHeap);
  }
  for (const char* name : {"append", "appendleft", "extend", "extendleft", "pop", "popleft", "rotate", "clear",
                           "insert", "reverse", "copy"}) {
    AddSpecial("collections", "deque", name, ChangeDeque);
  }
  AddRows("builtins", "set", Conduct::kMutates,
          {"difference_update", "intersection_update", "symmetric_difference_update"}, Reads::kCommon);
  AddRows("builtins", "tuple", Conduct::kPureObjects, {"__getnewargs__"});
  AddRows("builtins", "list", Conduct::kPureObjects, {"__reversed__"});
  AddRows("builtins", "dict", Conduct::kPureObjects, {"__reversed__"});
  for (const char* type : {"frozenset", "set", "dict"}) AddSpecial("builtins", type, "__contains__", Contains);
  AddSpecial("_operator", "", "contains", Contains);
  AddSpecial("_operator", "", "lt", Compare<Py_LT>);
  AddSpecial("_operator", "", "le", Compare<Py_LE>);
  AddSpecial("_operator", "", "eq", Compare<Py_EQ>);
  AddSpecial("_operator", "", "ne", Compare<Py_NE>);
  AddSpecial("_operator", "", "gt", Compare<Py_GT>);
  AddSpecial("_operator", "", "ge", Compare<Py_GE>);
  for (const char* name : {"is_", "is_not"}) AddSpecial("_operator", "", name, Is);
  for (const char* name : {"truth", "not_"}) AddSpecial("_operator", "", name, Truth);
  AddSpecial("_operator", "", "getitem", GetItem);
  for (const char* name : {"setitem", "delitem"}) AddSpecial("_operator", "", name, StoreItem);
  AddRows("_operator", "", Conduct::kPure, {"countOf", "indexOf"}, Reads::kSearch);
  AddRows("_operator", "", Conduct::kPure, {"concat"});
  for (const char* name : {"get", "__getitem__"}) AddSpecial("builtins", "dict", name, DictGet, true);
  AddSpecial("builtins", "dict", "values", ViewValues);
  AddSpecial("builtins", "dict", "items", ViewItems);
  AddSpecial("types", "MappingProxyType", "get", DictGet);
}

}  // namespace frametap
