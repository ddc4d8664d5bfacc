// The part of Session that raises: calls that fullgraph or assert_no_recording refuse.

#include <cstring>
#include <utility>

#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/record/break_words.h"
#include "frame_eval/session/session_parts.h"

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

void TakePending(Ref<>* error_type, Ref<>* error_value) {
  if (PyErr_Occurred() == nullptr) return;
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback != nullptr) PyException_SetTraceback(value, traceback);
  *error_type = Ref<>::Steal(type);
  *error_value = Ref<>::Steal(value);
  Py_XDECREF(traceback);
}

bool HandsOn(const FrameState& f) {
  bool hands_on = false, is_first = false;
  for (int at = StartOffset(f.code); at <= f.offset;) {
    const InstructionInfo info = InstructionAt(f.code, at);
    const bool catches = std::strcmp(info.name, "CHECK_EXC_MATCH") == 0 ||
                         std::strcmp(info.name, "CHECK_EG_MATCH") == 0 ||
                         (is_first && std::strcmp(info.name, "POP_TOP") == 0);
    is_first = std::strcmp(info.name, "PUSH_EXC_INFO") == 0;
    if (is_first) hands_on = true;
    if (catches) hands_on = false;
    at = info.next;
  }
  return hands_on;
}

// The call shall end with `type(message, **facts)`.
void Session::Fail(PyObject* type, const std::string& message, Ref<> facts) {
  if (type == nullptr) return;
  insists_ = true;
  HookPause pause;  // the exception's own __init__ is not the program's
  error_type_ = Ref<>::New(type);
  const Ref<> args = Ref<>::Steal(Py_BuildValue("(s)", message.c_str()));
  if (args && facts) error_value_ = Ref<>::Steal(PyObject_Call(type, args.get(), facts.get()));
  TakePending(&error_type_, &error_value_);
}

// Whether the call fails for this reason. Others that give a recording up say nothing of the function: a debugger follows
// the thread, a mode is active, the program has raised an exception of its own.
bool Session::IsRefused(Reason reason) const {
  if (reason == Reason::marked_size) return true;
  if (!store_->options().fullgraph) return false;
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

void Session::RefuseFullGraph(const Break& reason, const Position& at) {
  const bool contradicts = reason.reason == Reason::marked_size;
  const ReasonRow& row = RowOf(reason.reason);
  const std::string where = ToString(at);
  std::string text = contradicts ? reason.detail : row.text;
  if (!contradicts && !reason.detail.empty()) text += " (" + reason.detail + ")";
  store_->Log({LogEntry::Kind::kBreak, at.function, row.name, text, row.advice, at, {}, reason.inside});
  if (!contradicts) text = "fullgraph=True, but the graph ends at " + where + " because " + text;
  Fail(contradicts ? Errors().constraint : Errors().full_graph, WithFile(text, at), FactsOfRefusal(row, where));
  raised_.reset();
}

// The recording ends, and the exception goes its way as if there had been none. Frames from `handling` on: the first one
// handles the exception, and the others are called by its handler.
void Session::HandleInPlainPython(Break reason, size_t handling) {
  const std::vector<FrameState*> frames = trace().frames.inlined;
  for (size_t i = 0; i < frames.size() && i <= handling; ++i) {
    const bool has_begun = i == handling;
    NoteOf(*frames[i]).entry.handling = EntryState::Handling{frames[i]->handlers - has_begun, has_begun, false};
  }
  raised_.emplace(InWordsOfUser(reason, frames), BreakPosition(trace()));
  raised_in_ = left_alone_ = frames.front();
  undo_ = recorder_->TakeUndo();
  ReleaseFrames(frames);
  DropRecorder();
  TakeTime();
}

// Returns whether the frame has caught the exception in `raised_`, before a statement of an `except` block runs.
// Blocks that rethrow it (`finally`, `with`, `except` of other classes) run.
bool Session::IsCaughtAt(const FrameState& f, FrameNote& note) const {
  EntryState::Handling& handling = *note.entry.handling;
  const char* name = InstructionAt(f.code, f.offset).name;
  const bool is_first = std::exchange(handling.is_first, false);
  if (std::strcmp(name, "PUSH_EXC_INFO") == 0) {
    handling.has_begun = handling.is_first = true;
    return false;
  }
  if (!handling.has_begun) return handling.handlers == 0;  // C code has caught it (one in a handler is not looked at)
  // After the handler: a `with` block has swallowed it, or `finally` returns.
  if (f.handlers <= handling.handlers) return std::strcmp(name, "RERAISE") != 0;
  if (f.handlers > handling.handlers + 1) return false;  // a `finally` block handles another one
  PyObject* const* top = f.objects + f.nlocalsplus + f.depth;
  if (std::strcmp(name, "CHECK_EXC_MATCH") == 0) return PyErr_GivenExceptionMatches(top[-2], top[-1]) != 0;
  return std::strcmp(name, "CHECK_EG_MATCH") == 0 ||
         (is_first && std::strcmp(name, "POP_TOP") == 0);  // a bare `except`
}

// Raises at the entry point: nothing has run from there. Blocks that the exception leaves run as with any other.
Tracer::Go Session::Refuse(const FrameState& f, const char* reason, const std::string& segment,
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
  PyErr_SetObject(error_type_.get(), error_value_.get());
  return Go::kRaise;
}

}  // namespace frametap
