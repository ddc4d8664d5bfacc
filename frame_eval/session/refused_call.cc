#include "frame_eval/session/refused_call.h"

#include <utility>

#include "frame_eval/interpreter/hook.h"
#include "frame_eval/replay/faults.h"
#include "frame_eval/segment/error_classes.h"

namespace frametap {
namespace {

std::string WithFile(std::string message, const Position& at) {
  if (!at.file.empty()) message += "\n  File \"" + at.file.str() + "\", line " + std::to_string(at.line);
  return message;
}

Ref<> FactsOfRefusal(const ReasonRow& row, const std::string& where) {
  return Ref<>::Steal(
      Py_BuildValue("{s:s,s:s,s:s}", "reason", row.name, "position", where.c_str(), "advice", row.advice));
}

}  // namespace

void RefusedCall::Set(PyObject* type, const std::string& message) {
  value_ = Ref<>::Steal(PyObject_CallFunction(type, "s", message.c_str()));
  TakePending();
}

void RefusedCall::TakePending() {
  if (Ref<> pending = TakeException()) value_ = std::move(pending);
}

void RefusedCall::DropPending() { TakeException(); }

void RefusedCall::Raise() const { PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(value_.get())), value_.get()); }

// Ends the call with `type(message, **facts)`.
void RefusedCall::Fail(PyObject* type, const std::string& message, Ref<> facts) {
  if (type == nullptr) return;
  insists_ = true;
  HookPause pause;  // the exception's own __init__ is not the program's
  const Ref<> args = Ref<>::Steal(Py_BuildValue("(s)", message.c_str()));
  if (args && facts) value_ = Ref<>::Steal(PyObject_Call(type, args.get(), facts.get()));
  TakePending();
}

bool RefusedCall::Is(const SegmentCache& store, Reason reason) {
  if (reason == Reason::marked_size) return true;
  if (!store.options().fullgraph) return false;
  return RowOf(reason).is_break || reason == Reason::escaping_object || reason == Reason::generator_dropped;
}

void RaiseFullGraphError(Reason reason, PyCodeObject* code) {
  const ReasonRow& row = RowOf(reason);
  const Position at = PositionAt(code, StartOffset(code));
  const std::string where = ToString(at);
  const std::string text = "fullgraph=True, but there is no graph of " + at.function.str() + " because " + row.text;
  const Ref<> args = Ref<>::Steal(Py_BuildValue("(s)", WithFile(text, at).c_str()));
  const Ref<> facts = FactsOfRefusal(row, where);
  if (!args || !facts) return;
  const Ref<> error = Ref<>::Steal(PyObject_Call(Errors().full_graph, args.get(), facts.get()));
  if (error) PyErr_SetObject(Errors().full_graph, error.get());
}

void RefusedCall::EndOfGraph(SegmentCache& store, const Break& reason, const Position& at) {
  const bool contradicts = reason.reason == Reason::marked_size;
  const ReasonRow& row = RowOf(reason.reason);
  const std::string where = ToString(at);
  std::string text = contradicts ? reason.detail : row.text;
  if (!contradicts && !reason.detail.empty()) text += " (" + reason.detail + ")";
  store.Log({LogEntry::Kind::kBreak, at.function, row.name, text, row.advice, at, {}, reason.inside});
  if (!contradicts) text = "fullgraph=True, but the graph ends at " + where + " because " + text;
  Fail(contradicts ? Errors().constraint : Errors().full_graph, WithFile(text, at), FactsOfRefusal(row, where));
}

void RefusedCall::Recording(const FrameState& f, const char* reason, const std::string& segment,
                            const MissReport& miss) {
  const Position at = PositionAt(f.code, f.offset);
  const std::string where = ToString(at), line = ToString(miss.line);
  Ref<> words = segment.empty()
                    ? Ref<>::New(Py_None)
                    : Ref<>::Steal(Py_BuildValue("{s:s,s:s,s:s,s:s,s:s,s:s}", "segment", segment.c_str(), "source",
                                                 miss.source.c_str(), "want", miss.want.c_str(), "got",
                                                 miss.got.c_str(), "why", miss.why.c_str(), "position", line.c_str()));
  Ref<> facts = words ? Ref<>::Steal(Py_BuildValue("{s:s,s:s,s:s,s:O}", "reason", reason, "position", where.c_str(),
                                                   "function", at.function.str().c_str(), "miss", words.get()))
                      : Ref<>();
  Fail(Errors().recording, WithFile("frametap.assert_no_recording: " + where + " would be recorded", at),
       std::move(facts));
  insists_ = false;
}

}  // namespace frametap
