// Changes of lists and dicts that existed before, where the trace has not read their whole content. Examples are a
// counter in a dict, an item of a list, and a list that grows from call to call.
//   O1  A store under a key needs that the key was there, an append needs nothing: what is not read stays unguarded.
//   O2  A stored or appended value keeps its shadow, so that no number is fixed. The container's other items are as at
//       the entry.
//   O3  A read of the content as a whole (AdoptElements) guards it as it was at the entry, and takes the changes from
//       here. A dict's values are fixed then. Numbers that are stored later are open again, until the next such read or
//       another change (FixValues).
//   O4  Only plain keys, fixed classes and fixed members of enumerations are followed: a look-up by one runs no code of
//       the program's.
//   O5  A length that has changed between calls is an open number. Items at the end of such a list are counted from there.
// Not here: lists and dicts of the trace's own (sequences.cc, own_dicts.cc), changes that need the content to be known (BeginMutation).
#pragma once

#include <Python.h>

#include <optional>

#include "frame_eval/interpreter/shadow.h"
#include "frame_eval/record/trace.h"
#include "guards/ref.h"

namespace frametap {

struct Trace;

// Whether `dict[key] = value` is the store of dict or OrderedDict, and runs no code of the class.
bool HasPlainStore(PyObject* dict);
// `dict[key] = number` in a dict that existed before, which has no such key or whose content is known. Returns false, with
// nothing noted, if the number is fixed.
bool StoreUnderNewKey(Trace& trace, PyObject* dict, PyObject* key, PyObject* value, Shadow shadow);
PyTypeObject* DefaultDict();  // collections.defaultdict
PyObject* FactoryField();     // its descriptor of default_factory
Ref<> FactoryOf(PyObject* defaultdict);
// Whether a key is a number, string or another scalar except NaN, or a tuple of plain keys.
bool IsPlainKey(PyObject* key, int depth = 0);
// Whether the items of a dict that existed before are followed under this key (O4). A class or member is fixed then.
bool IsFollowedKey(Trace& trace, PyObject* key);

Shadow* StoredItem(Trace& trace, PyObject* dict, PyObject* key);  // what the trace has stored there; null if nothing
inline Shadow ShadowOfItem(Trace& trace, PyObject* dict, PyObject* key) {
  const Shadow* const stored = StoredItem(trace, dict, key);
  return stored != nullptr ? *stored : Shadow();
}
PyObject* PlainKey(Trace& trace, PyObject* key);
bool StoreOutside(Trace& trace, PyObject* container, PyObject* key, PyObject* value, Shadow shadow);
// Returns the length of a list, dict or set that existed before, as a number that is left open. Returns a shadow of nothing,
// with nothing noted, if its length has been the same in all calls or its content is known. The type is guarded.
Shadow OpenLength(Trace& trace, PyObject* container);
// Returns what an item from the end of a list is to be, if it can be had without the length. The type of the list and the
// key are fixed.
std::optional<ResultSpec> ItemFromEnd(Trace& trace, PyObject* list, PyObject* key);
// Returns whether a list has items for certain, as the trace has appended some.
bool HasAppended(Trace& trace, PyObject* list);
bool AppendOutside(Trace& trace, PyObject* list, PyObject* items, PyObject* item, Shadow shadow);
// Records a loop over a dict that existed before, or over its values() or items(). The loop gets the objects in it one by
// one, and reads of them are guarded where they happen: a counter in one of them stays open. Returns false, with nothing
// noted, for other containers.
bool LoopOver(Trace& trace, PyObject* dict);
void NoteOutsideChange(Trace& trace, PyObject* container);

}  // namespace frametap
