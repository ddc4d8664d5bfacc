// Calls: what kind of callable it is, what it reads, and how its arguments reach the frame of a Python function.
#pragma once

#include <Python.h>

#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/objects/outside_containers.h"
#include "frame_eval/record/trace.h"
#include "guards/objects/dict_items.h"

namespace frametap {

// Guards what a call reads, by the tables of callables, and leaves in the note how its result is known.
void Invoke(Trace& trace, Call call);
// Guards what C code reads that makes calls without events.
void ReadCallbacks(Trace& trace, const Call& call);
bool IsOpen(Trace& trace, PyObject* callable);
// Expects the frame of a Python function. The caller fills in the arguments.
PendingCall& ExpectFrame(Trace& trace, PyObject* function);

// Returns the operands of a call event with their shadows and names.
Call CallOf(Trace& trace, FrameState& f, FrameNote& note, const Event& e);
Ref<> KeywordsOf(const Call& call);  // a tuple

// Adds the arguments of `f(*args, **kwargs)`, after the ones in `call`: of a Call, or of a Python function that has been
// called.
template <class AnyCall>
void AddSpread(Trace& trace, const Event& e, AnyCall* call) {
  PyObject* args = e.in[1];
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); ++i) {
    call->args.push_back(PyTuple_GET_ITEM(args, i));
    call->shadows.push_back(ElementShadow(trace, args, i));
  }
  if (e.n < 3 || e.in[2] == nullptr) return;
  for (const auto [key, value] : DictItems(e.in[2])) {
    call->args.push_back(value);
    call->shadows.push_back(ShadowOfItem(trace, e.in[2], key));
    call->names.push_back(key);
  }
}

}  // namespace frametap
