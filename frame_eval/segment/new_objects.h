// How a replay makes objects again, and by which method it repeats an effect: a recording writes these, a replay reads them.
#pragma once

#include <Python.h>

#include <cstdint>

#include "guards/ref.h"

namespace frametap {

// The way in which a kNew operand is made again. items: [content] or the parts named, then the slots of an instance (a
// descriptor and its value). After them, one for each of `names`: the entries of its __dict__.
enum class NewKind : int64_t {
  kObject,     // object.__new__(type), attributes
  kDict,       // an instance of a dict subclass: content, attributes
  kTuple,      // an instance of a tuple subclass: content, attributes
  kFunction,   // code, globals, qualname, defaults, kwdefaults, closure; attributes
  kPartial,    // func, args, keywords; attributes
  kRange,      // start, stop, step
  kFrozenSet,  // its elements, in the order in which it gives them
  kDeque,      // content, maxlen
  kProxy,      // the dict
  kHashed,     // a dict, set or frozenset: the hashes that its keys gave in the recording, and its items
};

// The method that an effect on `target` calls. That of a container is its builtin type's: a class made of that may have
// overridden it, and what the override did is in the graph and the other effects.
Ref<> EffectMethod(PyObject* target, PyObject* name);

}  // namespace frametap
