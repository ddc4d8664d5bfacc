// Mapping proxies: `C.__dict__`, vars(C), types.MappingProxyType(d). What is read through one is read of the dict below
// it. That of a class is reached through the class.
//   M1  Only proxies of dicts (and OrderedDicts) whose keys are plain values are read; others end the segment.
// Not here: what a proxy holds (guards/held_object.h).
#pragma once

#include "frame_eval/recorder.h"

namespace frametap {

// The dict below a proxy, known from here on. Null: the object is no proxy.
PyObject* DictBelow(Recorder& recorder, PyObject* object);
// `C.__dict__`: the proxy that the read makes gives what the class holds. False: the metaclass says otherwise.
bool ReadClassDict(Recorder& recorder, FrameNote& note, PyTypeObject* type, PyObject* name);

}  // namespace frametap
