// Iterators: what makes them, what consumes them, itertools. Elements are fixed where an iterator is made; from one that
// existed before only `for` and next() take in a graph.
#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/numbers/sequences.h"
#include "frame_eval/record/objects/force.h"
#include "frame_eval/record/objects/identity.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/objects/own_dicts.h"
#include "frame_eval/record/semantics/calls.h"
#include "frame_eval/record/semantics/elements.h"
#include "frame_eval/record/semantics/foreign_operators.h"
#include "frame_eval/record/semantics/iterators.h"
#include "guards/cpython/suspended_frame.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/well_known_objects.h"
#include "guards/throw_if_null.h"

namespace frametap {
namespace {

// next(iterator[, default])
void Next(Trace& trace, Call& call) {
  if (call.args.empty()) return;
  for (size_t i = 1; i < call.args.size(); ++i) Specialize(trace, call.args[i], call.shadows[i]);
  RefuseForeignOperator(call.args[0]);
  const ObjectRecord* known = trace.objects.Find(call.args[0]);
  if (known != nullptr && known->state != ObjectRecord::State::kSource) return MarkMutated(trace, call.args[0]);
  if (TakeNext(trace, call.note, call.args[0])) return;
  if (call.args.size() < 2) throw Break{Reason::unknown_operation, "an iterator at its end"};
  call.note.op.expect.kind = ResultSpec::Kind::kAny;
}

// generator.send(value) of a generator of the trace's own.
void Send(Trace& trace, Call& call) {
  const ObjectRecord* known = call.args.empty() ? nullptr : trace.objects.Find(call.args[0]);
  if (known == nullptr || known->state == ObjectRecord::State::kSource) throw Refusal(call.callable);
  SpecializeArguments(trace, call, 1, true);
  MarkMutated(trace, call.args[0]);
}

// generator.close() of one of the trace's own. A frame that an exception is thrown into is not recorded, so none of its
// code may run: it has no handlers, and takes from no other generator.
void Close(Trace& trace, Call& call) {
  const ObjectRecord* known = call.args.size() == 1 ? trace.objects.Find(call.args[0]) : nullptr;
  if (known == nullptr || known->state == ObjectRecord::State::kSource || !PyGen_CheckExact(call.args[0])) {
    throw Refusal(call.callable);
  }
  static PyObject* const delegate = InternedName("gi_yieldfrom");
  SuspendedFrame frame;
  const bool waits = SuspendedFrameOf(call.args[0], &frame);
  if (waits &&
      (!IsPlainGenerator(frame.code) || Must(PyObject_GenericGetAttr(call.args[0], delegate)).get() != Py_None)) {
    throw Refusal(call.callable);
  }
  MarkMutated(trace, call.args[0]);
}

void Iterate(Trace& trace, Call& call) {
  for (size_t i = 0; i < call.args.size(); ++i) {
    if (IsTensor(call.args[i])) ReadTensor(trace, call.args[i], true, false);
    SpecializeDeep(trace, call.args[i], call.shadows[i], true);
  }
}

// reversed(row): the items are given later.
void IterateLater(Trace& trace, Call& call) {
  Iterate(trace, call);
  for (PyObject* arg : call.args) ViewRows(trace, arg);
}

// iter(iterable), iter(callable, sentinel)
void Iter(Trace& trace, Call& call) {
  IterateLater(trace, call);
  if (call.args.size() == 2) ReadCallbacks(trace, call);
}

// chain.from_iterable(rows), tee(rows)
void IterateRows(Trace& trace, Call& call) {
  for (PyObject* arg : call.args) {
    if (IsTensor(arg)) throw Break{Reason::value_of_tensor, CallableName(call.callable)};
  }
  IterateLater(trace, call);
}

// itertools.repeat(object[, times]): the object is handed on, and nothing of it is read.
void Repeat(Trace& trace, Call& call) { SpecializeArguments(trace, call, 0, true); }

// list(row), tuple(row), row.copy(). The items of a generator are known as it yields them (LeaveInlined).
void CopyRow(Trace& trace, Call& call) {
  const bool is_one = call.args.size() == 1 && call.names.empty();
  if (is_one && HasOpenItems(trace, call.args[0])) return KeepItems(trace, call.note, {call.args[0]});
  if (is_one && GiveRow(trace, call.note, call.args[0])) return;
  if (is_one && GivesPlainKeys(trace, call.args[0])) return;
  if (is_one && PyGen_CheckExact(call.args[0])) call.note.op.collects = call.args[0];
  Iterate(trace, call);
}

// Returns whether all items of a tuple or list are ints, and not truths or of a subclass.
bool HoldsPlainInts(PyObject* row) {
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(row); ++i) {
    if (!PyLong_CheckExact(PySequence_Fast_GET_ITEM(row, i))) return false;
  }
  return true;
}

// Guards that they are.
void FixTypesOfItems(Trace& trace, PyObject* row) {
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(row); ++i) FixType(trace, ElementShadow(trace, row, i));
}

// torch.Size(row): a truth is converted to an int, and so is what has __index__. A row that holds any is fixed.
void MakeSize(Trace& trace, Call& call) {
  PyObject* const row = call.args.size() == 1 ? call.args[0] : nullptr;
  if (row != nullptr && (PyTuple_Check(row) || PyList_Check(row))) {
    if (!HoldsPlainInts(row)) return Iterate(trace, call);
    if (HasOpenItems(trace, row)) FixTypesOfItems(trace, row);
  }
  CopyRow(trace, call);
}

// map(int, row) of ints gives these.
void Map(Trace& trace, Call& call) {
  const bool converts = call.args.size() == 2 && call.names.empty() &&
                        call.args[0] == reinterpret_cast<PyObject*>(&PyLong_Type) && HasOpenItems(trace, call.args[1]);
  if (!converts || !HoldsPlainInts(call.args[1])) {
    IterateLater(trace, call);
    return ReadCallbacks(trace, call);
  }
  FixTypesOfItems(trace, call.args[1]);
  call.note.op.marks.makes_iterator = true;
  trace.iteration.iterated.assign(1, call.args[1]);
}

// zip, enumerate
void MakeIterator(Trace& trace, Call& call) {
  for (PyObject* arg : call.args) {
    if (IsTensor(arg)) return Iterate(trace, call);
  }
  MakesIterator(trace, call);
}

// set(…), frozenset(…), dict(…)
void MakeTable(Trace& trace, Call& call) {
  if (call.callable == reinterpret_cast<PyObject*>(&PyDict_Type) && call.positional() == 0) {
    bool open = false;
    for (size_t i = 0; i < call.args.size(); ++i) {
      call.note.op.expect.items.push_back(KeepOpen(trace, call.args[i], call.shadows[i], &open));
    }
    if (open) call.note.op.expect.kind = ResultSpec::Kind::kItems;
    if (open) return;
  }
  Iterate(trace, call);
  for (PyObject* arg : call.args) ReadLayout(trace, arg);
  ReadIdentities(trace, Reads::kKeys, call);
}

// itertools.groupby(iterable, key): what the key function gives is read when a group is taken (ReadTableOfIterator).
void Group(Trace& trace, Call& call) {
  IterateLater(trace, call);
  ReadCallbacks(trace, call);
  const bool has_key = call.args.size() > 1 && call.args[1] != Py_None;
  if (has_key || call.args.empty() || HoldsPlainValues(call.args[0])) return;
  if (!HasKnownElements(call.args[0])) throw Break{Reason::unknown_operation, "groups of the items of an iterator"};
  ReadIdentities(trace, Reads::kKeys, call);
}

// functools.partial(function, …): of a partial it takes function and arguments, unless that has attributes of its own.
void MakePartial(Trace& trace, Call& call) {
  PyObject* const function = call.args.empty() ? nullptr : call.args[0];
  if (function != nullptr && Py_TYPE(function) == Objects().partial && SourceOf(trace, function).valid()) {
    throw Break{Reason::unknown_callable, "functools.partial of a partial that existed before"};
  }
  SpecializeArguments(trace, call, 0, true);
}

}  // namespace

void LoadIteration() {
  AddSpecial("builtins", "", "iter", Iter, true);
  AddSpecial("builtins", "", "reversed", IterateLater, true);
  for (const char* name : {"list", "tuple"}) AddSpecial("builtins", "", name, CopyRow, true);
  AddSpecial("builtins", "list", "copy", CopyRow, true);
  AddSpecial("torch", "", "Size", MakeSize, true);
  AddSpecial("builtins", "", "map", Map, true);
  for (const char* name : {"zip", "enumerate"}) AddSpecial("builtins", "", name, MakeIterator, true);
  for (const char* name : {"set", "frozenset", "dict"}) AddSpecial("builtins", "", name, MakeTable);
  AddSpecial("builtins", "", "next", Next);
  AddSpecial("types", "GeneratorType", "send", Send);
  AddSpecial("types", "GeneratorType", "close", Close);
  AddRows("builtins", "", Conduct::kPure, {"range", "slice"});
  AddRows("builtins", "", Conduct::kTransparent, {"any", "all", "filter"});
  AddRows("builtins", "", Conduct::kTransparent, {"sorted"}, Reads::kKeys);
  AddRows("builtins", "slice", Conduct::kPure, {"indices"});
  AddRows("builtins", "range", Conduct::kPure, {"index", "count", "__reversed__"});
  AddRows("itertools", "", Conduct::kTransparent,
          {"accumulate", "chain", "combinations", "combinations_with_replacement", "compress", "count", "cycle",
           "dropwhile", "filterfalse", "islice", "pairwise", "permutations", "product", "starmap", "takewhile",
           "zip_longest"});
  AddSpecial("itertools", "", "repeat", Repeat, true);
  AddSpecial("itertools", "", "groupby", Group);
  for (const auto& [owner, name] : {std::pair("", "tee"), std::pair("chain", "from_iterable")}) {
    AddSpecial("itertools", owner, name, IterateRows);
  }
  AddSpecial("_functools", "", "partial", MakePartial);
  AddRows("_functools", "", Conduct::kPureObjects, {"cmp_to_key"});
  AddRows("_operator", "", Conduct::kPureObjects, {"itemgetter", "attrgetter", "methodcaller"});
}

}  // namespace frametap
