// Queries about containers that existed before and are changed (outside_containers.cc).
#pragma once

#include <Python.h>

#include "frame_eval/interpreter/shadow.h"
#include "guards/objects/dict_write.h"
#include "guards/ref.h"

namespace frametap {

class Recorder;

// Whether `dict[key] = value` is the store of dict or OrderedDict, and runs no code of the class.
bool HasPlainStore(PyObject* dict);
// `dict[key] = number` in a dict that existed before, which has no such key or whose content is known. Returns false, with
// nothing noted, if the number is fixed.
bool StoreUnderNewKey(Recorder& recorder, PyObject* dict, PyObject* key, PyObject* value, Shadow shadow);
PyTypeObject* DefaultDict();  // collections.defaultdict
PyObject* FactoryField();     // its descriptor of default_factory
Ref<> FactoryOf(PyObject* defaultdict);
// Whether a key is a number, string or another scalar except NaN, or a tuple of plain keys.
bool IsPlainKey(PyObject* key, int depth = 0);
// Whether the items of a dict that existed before are followed under this key (O4). A class or member is fixed then.
bool IsFollowedKey(Recorder& recorder, PyObject* key);

}  // namespace frametap
