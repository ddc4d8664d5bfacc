// Mapping proxies: `C.__dict__`, vars(C), types.MappingProxyType(d). A read through one is a read of the dict below
// it. The dict of a class is reached through the class.
//   M1  Only proxies of dicts (and OrderedDicts) whose keys are plain values are read; others end the segment.
// Not here: what a proxy holds (guards/objects/held_object.h).
#pragma once

#include "frame_eval/record/trace.h"

namespace frametap {

// Returns the dict below a proxy, known from here on, or null if the object is not a proxy.
PyObject* DictBelow(Trace& trace, PyObject* object);
// `C.__dict__`: the proxy that the read makes has the content of the class. Returns false if the metaclass overrides
// it.
bool ReadClassDict(Trace& trace, FrameNote& note, PyTypeObject* type, PyObject* name);

}  // namespace frametap
