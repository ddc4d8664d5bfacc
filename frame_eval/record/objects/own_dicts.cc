// Dicts of the trace's own that hold numbers which are not fixed: results that a call returns by name, keywords on their way
// to another function.
//   V1  A dict has a shadow for each open number under a plain key (Known::changes). Every change of it is followed here, or
//       fixes the numbers (FixValues).
//   V2  Reads by one key give the shadow. Whatever may look at the dict as a whole, now or later, fixes its numbers for good
//       (ViewDict, ForceDeep): views and iterators see what is stored after they were made.
// Not here: dicts that existed before (outside_containers.cc), tuples and lists (rows.cc).
#include <cstring>

#include "frame_eval/record/objects/outside_containers.h"
#include "frame_eval/record/recorder.h"

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

bool HasPlainKeys(PyObject* dict) {
  Py_ssize_t at = 0;
  PyObject *key, *value;
  while (PyDict_Next(dict, &at, &key, &value)) {
    if (!IsPlainKey(key)) return false;
  }
  return true;
}

}  // namespace

bool Recorder::MayHoldOpen(PyObject* dict) {
  const Known* known = PyDict_CheckExact(dict) ? Find(dict) : nullptr;
  return known != nullptr && known->state == Known::State::kFresh && !known->is_viewed && numbers_open();
}

// `shadow` is kNone where the value is fixed.
void Recorder::KeepValue(PyObject* dict, PyObject* key, Shadow shadow) {
  Known* const known = Find(dict);
  known->MutatedIn(epoch_);
  if (shadow.kind != Shadow::Kind::kNone) {
    if (!known->changes) known->changes = std::make_unique<OutsideChanges>();
    known->changes->stored[PlainKey(key)] = shadow;
  } else if (known->changes) {
    known->changes->stored.erase(PlainKey(key));
  }
}

void Recorder::FixValues(PyObject* dict) {
  Known* const known = Find(dict);
  if (known == nullptr || !known->changes) return;
  if (known->state == Known::State::kSource && !known->adopted) return;
  for (const auto& [key, shadow] : known->changes->stored) Force(PyDict_GetItemWithError(dict, key), shadow);
  known->changes.reset();  // not before: if one cannot be fixed, the segment ends with the dict's present content
  known->MutatedIn(epoch_);
}

// An attribute of the dict is read: a method, which may keep a view of it.
void Recorder::ViewDict(PyObject* dict, PyObject* method) {
  if (!MayHoldOpen(dict) || HoldsNoView(method)) return;
  FixValues(dict);
  Find(dict)->is_viewed = true;
}

// `dict[key] = value`, or `del dict[key]` without a value. Returns false, with nothing noted, if nothing is open.
bool Recorder::StoreOwn(PyObject* dict, PyObject* key, PyObject* value, Shadow shadow) {
  if (!MayHoldOpen(dict) || !IsPlainKey(key)) return false;
  bool open = Find(dict)->changes != nullptr;
  const Shadow kept = value != nullptr ? KeepOpen(value, shadow, &open) : Shadow();
  if (!open) return false;
  ReadKey(dict, key);
  KeepValue(dict, key, kept);
  return true;
}

// `f(**from)`, `{**from}`, `dict.update(from)`. Returns false, with nothing noted, if nothing is open.
bool Recorder::MergeOpen(PyObject* dict, PyObject* from) {
  if (!MayHoldOpen(dict) || !PyDict_CheckExact(from) || from == dict) return false;
  const Known* const other = Find(from);
  if (other == nullptr || (!Find(dict)->changes && !other->changes)) return false;
  if (other->state == Known::State::kOpaque || !HasPlainKeys(from)) return false;
  Touch(from);
  AdoptElements(from);
  Py_ssize_t at = 0;
  PyObject *key, *value;
  while (PyDict_Next(from, &at, &key, &value)) {
    const Shadow* const open = StoredItem(from, key);
    if (open == nullptr) ForceDeep(value, Shadow(), true);
    ReadKey(dict, key);
    KeepValue(dict, key, open != nullptr ? *open : Shadow());
  }
  return true;
}

// dict.update([from], key=value …). Returns false, with nothing noted, if nothing is open.
bool Recorder::UpdateOwn(const Call& call) {
  PyObject* const dict = call.args[0];
  const size_t positional = call.positional();
  if (!MayHoldOpen(dict) || positional > 2) return false;
  PyObject* const from = positional == 2 ? call.args[1] : nullptr;
  if (from != nullptr && call.names.empty()) return MergeOpen(dict, from);
  bool open = Find(dict)->changes != nullptr;
  for (size_t i = positional; i < call.args.size(); ++i) open = open || LeavesOpen(call.args[i], call.shadows[i]);
  if (!open || from != nullptr) return false;
  for (size_t i = positional; i < call.args.size(); ++i) {
    KeepValue(dict, call.names[i - positional], KeepOpen(call.args[i], call.shadows[i], &open));
  }
  return true;
}

// dict.pop(key[, default]). Returns false, with nothing noted, if nothing is open.
bool Recorder::PopOwn(Call& call) {
  PyObject* const dict = call.args[0];
  const bool has_key = call.args.size() >= 2 && call.names.empty();
  if (!MayHoldOpen(dict) || !Find(dict)->changes || !has_key || !IsPlainKey(call.args[1])) return false;
  ForceArguments(call, 1, true);
  ReadKey(dict, call.args[1]);
  if (const Shadow* const open = StoredItem(dict, call.args[1]); open != nullptr) {
    call.note.expect.kind = Expect::Kind::kShadow;
    call.note.expect.shadow = *open;
  }
  KeepValue(dict, call.args[1], Shadow());
  return true;
}

}  // namespace frametap
