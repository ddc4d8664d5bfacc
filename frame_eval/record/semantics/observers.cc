#include "frame_eval/record/semantics/observers.h"

#include <ATen/record_function.h>

#include "frame_eval/record/objects/force.h"
#include "frame_eval/record/objects/knowledge.h"
#include "guards/throw_if_null.h"

namespace frametap {
namespace {

PyObject* HasObservers(PyObject*, PyObject*) { return PyLong_FromLong(at::hasCallbacks() ? 1 : 0); }

}  // namespace

MarkTest mark_test = nullptr;

void FixMark(Trace& trace, PyObject* mark) {
  const SourceId source = SourceOf(trace, mark);
  if (!source.valid() || HasChanged(trace, source))
    throw Break{Reason::unknown_operation, "a mark for a profiler from plain Python"};
  trace.guards.Identity(source, trace.frames.Here());
}

void CallObserved(Trace& trace, Call& call, bool has_result) {
  if (at::hasCallbacks()) throw Break{Reason::unknown_operation, "a mark for a profiler that is on"};
  static PyMethodDef method = {"has_observers", HasObservers, METH_NOARGS, nullptr};
  static PyObject* const function = Must(PyCFunction_New(&method, nullptr)).Release();
  trace.guards.Answer(function, "profilers that are on", trace.frames.Here());
  for (size_t i = 0; i < call.args.size(); ++i) SpecializeDeep(trace, call.args[i], call.shadows[i], true);
  call.note.op.expect.kind = has_result ? ResultSpec::Kind::kPinned : ResultSpec::Kind::kNothing;
}

}  // namespace frametap
