#include "frame_eval/record/objects/own_dicts.h"

#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/numbers/sequences.h"
#include "frame_eval/record/objects/force.h"
#include "frame_eval/record/objects/identity.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/objects/outside_containers.h"
#include "frame_eval/record/semantics/elements.h"
#include "frame_eval/record/semantics/predicted_calls.h"
#include "guards/objects/dict_items.h"

namespace frametap {
namespace {

// Methods that read or change a dict when they are called, and at no other time.
bool HoldsNoView(PyObject* method) {
  for (const char* name : {"get", "pop", "setdefault", "update", "copy", "clear", "__contains__", "__getitem__",
                           "__setitem__", "__delitem__", "__len__"}) {
    if (PyUnicode_CompareWithASCIIString(method, name) == 0) return true;
  }
  return false;
}

bool GivesNumbers(PyObject* method) {
  return PyUnicode_CompareWithASCIIString(method, "values") == 0 ||
         PyUnicode_CompareWithASCIIString(method, "items") == 0;
}

bool HasPlainKeys(PyObject* dict) {
  for (const auto [key, value] : DictItems(dict)) {
    if (!IsPlainKey(key)) return false;
  }
  return true;
}

}  // namespace

bool MayHoldOpen(Trace& trace, PyObject* dict) {
  const ObjectRecord* known = PyDict_CheckExact(dict) ? trace.objects.Find(dict) : nullptr;
  return known != nullptr && known->state == ObjectRecord::State::kFresh && !known->is_viewed &&
         trace.numbers.any_open();
}

bool HoldsOpen(Trace& trace, PyObject* dict) {
  return MayHoldOpen(trace, dict) && trace.objects.Find(dict)->changes != nullptr;
}

// `shadow` is kNone where the value is fixed.
void KeepValue(Trace& trace, PyObject* dict, PyObject* key, Shadow shadow) {
  MeetAsObject(trace, dict);
  ObjectRecord* const known = trace.objects.Find(dict);
  known->MutatedIn(trace.epoch);
  if (shadow.kind != Shadow::Kind::kNone) {
    if (!known->changes) known->changes = std::make_unique<OutsideChanges>();
    known->changes->stored[PlainKey(trace, key)] = shadow;
  } else if (known->changes) {
    known->changes->stored.erase(PlainKey(trace, key));
  }
}

void FixValues(Trace& trace, PyObject* dict) {
  ObjectRecord* const known = trace.objects.Find(dict);
  if (known == nullptr || !known->changes) return;
  if (known->state == ObjectRecord::State::kSource && !known->adopted) return;
  for (const auto& [key, shadow] : known->changes->stored)
    Specialize(trace, PyDict_GetItemWithError(dict, key), shadow);
  known->changes.reset();  // not before: if one cannot be fixed, the segment ends with the dict's present content
  if (!IsLent(trace, dict)) known->MutatedIn(trace.epoch);  // object_records/K2
}

// An attribute of the dict is read: a method, which may keep a view of it.
void ViewDict(Trace& trace, PyObject* dict, PyObject* method) {
  if (!MayHoldOpen(trace, dict) || HoldsNoView(method)) return;
  ObjectRecord& known = *trace.objects.Find(dict);
  if (known.changes != nullptr && !trace.objects.has_open_keys && GivesNumbers(method)) {
    trace.objects.has_open_views = true;
    return;
  }
  FixValues(trace, dict);
  known.is_viewed = true;
}

bool GivesPlainKeys(Trace& trace, PyObject* dict) {
  return HoldsOpen(trace, dict) && !trace.objects.has_open_keys && HasPlainKeys(dict);
}

PyObject* DictOfOpenView(Trace& trace, PyObject* view) {
  if (!trace.objects.has_open_views || view == nullptr) return nullptr;
  if (!PyDictValues_Check(view) && !PyDictItems_Check(view)) return nullptr;
  PyObject* const dict = DictOfView(view);
  return HoldsOpen(trace, dict) ? dict : nullptr;
}

void FixView(Trace& trace, PyObject* object) {
  PyObject* const dict = DictOfOpenView(trace, object);
  if (dict == nullptr) return;
  FixValues(trace, dict);
  trace.objects.Find(dict)->is_viewed = true;
}

void MeetOpenViews(Trace& trace, const Event& e) {
  const bool is_copy = e.op == Op::kCall && e.n == 2 && CopiesRow(e.in[0]);
  const bool takes_all = e.op == Op::kUnpack || e.op == Op::kListExtend || e.op == Op::kListToTuple;
  if (is_copy || takes_all || e.op == Op::kGetIter) return;
  for (int i = 0; i < e.n; ++i) FixView(trace, e.in[i]);
}

// `dict[key] = value`, or `del dict[key]` without a value. Returns false, with nothing noted, if nothing is open.
bool StoreOwn(Trace& trace, PyObject* dict, PyObject* key, PyObject* value, Shadow shadow) {
  if (!MayHoldOpen(trace, dict) || !IsPlainKey(key)) return false;
  bool open = trace.objects.Find(dict)->changes != nullptr;
  const Shadow kept = value != nullptr ? KeepOpen(trace, value, shadow, &open) : Shadow();
  if (!open) return false;
  ReadKey(trace, dict, key);
  KeepValue(trace, dict, key, kept);
  return true;
}

// `f(**from)`, `{**from}`, `dict.update(from)`. Returns false, with nothing noted, if nothing is open.
bool MergeOpen(Trace& trace, PyObject* dict, PyObject* from) {
  if (!MayHoldOpen(trace, dict) || !PyDict_CheckExact(from) || from == dict) return false;
  const ObjectRecord* const other = trace.objects.Find(from);
  if (other == nullptr || (!trace.objects.Find(dict)->changes && !other->changes)) return false;
  if (other->state == ObjectRecord::State::kOpaque || !HasPlainKeys(from)) return false;
  GuardTypeOrIdentity(trace, from);
  AdoptElements(trace, from);
  for (const auto [key, value] : DictItems(from)) {
    const Shadow* const open = StoredItem(trace, from, key);
    if (open == nullptr) SpecializeDeep(trace, value, Shadow(), true);
    ReadKey(trace, dict, key);
    KeepValue(trace, dict, key, open != nullptr ? *open : Shadow());
  }
  return true;
}

// dict.update([from], key=value …). Returns false, with nothing noted, if nothing is open.
bool UpdateOwn(Trace& trace, const Call& call) {
  PyObject* const dict = call.args[0];
  const size_t positional = call.positional();
  if (!MayHoldOpen(trace, dict) || positional > 2) return false;
  PyObject* const from = positional == 2 ? call.args[1] : nullptr;
  if (from != nullptr && call.names.empty()) return MergeOpen(trace, dict, from);
  bool open = trace.objects.Find(dict)->changes != nullptr;
  for (size_t i = positional; i < call.args.size(); ++i)
    open = open || LeavesOpen(trace, call.args[i], call.shadows[i]);
  if (!open || from != nullptr) return false;
  for (size_t i = positional; i < call.args.size(); ++i) {
    KeepValue(trace, dict, call.names[i - positional], KeepOpen(trace, call.args[i], call.shadows[i], &open));
  }
  return true;
}

// dict.pop(key[, default]). Returns false, with nothing noted, if nothing is open.
bool PopOwn(Trace& trace, Call& call) {
  PyObject* const dict = call.args[0];
  const bool has_key = call.args.size() >= 2 && call.names.empty();
  if (!MayHoldOpen(trace, dict) || !trace.objects.Find(dict)->changes || !has_key || !IsPlainKey(call.args[1]))
    return false;
  SpecializeArguments(trace, call, 1, true);
  ReadKey(trace, dict, call.args[1]);
  if (const Shadow* const open = StoredItem(trace, dict, call.args[1]); open != nullptr) {
    call.note.op.expect.SetShadow(*open);
  }
  KeepValue(trace, dict, call.args[1], Shadow());
  return true;
}

}  // namespace frametap
