#include "frame_eval/session/publisher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "frame_eval/checks/self_checking.h"
#include "frame_eval/cpython/signals.h"
#include "frame_eval/interpreter/hook.h"
#include "frame_eval/replay/faults.h"
#include "frame_eval/replay/run_graph.h"
#include "frame_eval/segment/error_classes.h"
#include "frame_eval/segment/event_log.h"
#include "frame_eval/session/library_code.h"
#include "guards/objects/torch_tensor.h"
#include "ir/text/text.h"

namespace frametap {
namespace {

// self_check/Y4: a recorder's graph is valid.
absl::StatusOr<std::unique_ptr<Executable>> CompileGraph(Backend& backend, Segment& segment) {
  if (backend.reads_words()) segment.Shown();
  if (SelfChecking()) {
    if (absl::Status valid = VerifyRunnable(segment.ir.graph); !valid.ok()) return valid;
  }
  return backend.CompileFor(segment.ir.graph, segment.examples);
}

}  // namespace

void Publisher::Begin(PyCodeObject* code, int offset, bool is_below) {
  code_ = code;
  offset_ = offset;
  is_below_ = is_below;
  went_on_ = false;
  began_ = std::chrono::steady_clock::now();
}

bool Publisher::IsAtStartOf(PyCodeObject* code) const { return code_ == code && offset_ == StartOffset(code); }

void Publisher::Abort(const Break& reason, Position at, bool deny) {
  EntryPoint& entry = entry_point();
  if (went_on_ && !entry.alone) {
    entry.alone = true;  // it may have been the callers
  } else if (deny) {
    ++entry.denials;
  }
  TakeTime();
  Log(LogEntry::Kind::kAbort, at.function, reason, at);
}

void Publisher::NoteNoGraph(const Break& reason, const Position& at, int offset) {
  entry_point().wait_offset = offset;
  TakeTime();
  Log(LogEntry::Kind::kBreak, at.function, reason, at);
}

void Publisher::Log(LogEntry::Kind kind, const std::string& segment, const Break& reason, const Position& at) {
  const ReasonRow& row = RowOf(reason.reason);
  std::string text = row.text;
  if (!reason.detail.empty()) text += ": " + reason.detail;
  store_.Log({kind, segment, row.name, text, row.advice, at, {}, reason.inside});
}

bool Publisher::Compile(Segment& segment) {
  std::string problem;
  try {
    HookPause pause;  // a backend's own Python code is not the program's
    SignalsServed signals;
    NotePythonKernels();
    absl::StatusOr<std::unique_ptr<Executable>> executable = CompileGraph(store_.backend(), segment);
    segment.examples = {};
    if (executable.ok() && !segment.ir.decisions.outcomes.empty()) {
      static std::unique_ptr<Backend> native = MakeNativeBackend();
      absl::StatusOr<std::unique_ptr<Executable>> decisions = native->Compile(segment.ir.decisions.graph);
      if (decisions.ok())
        segment.decisions = std::move(*decisions);
      else
        executable = decisions.status();
    }
    if (executable.ok()) {
      segment.executable = std::move(*executable);
      return true;
    }
    problem = std::string(executable.status().message());
  } catch (...) {
    SetPythonErrorFromException();
  }
  if (PyErr_Occurred() == nullptr && Errors().backend != nullptr) refusal_.Set(Errors().backend, problem);
  if (PyErr_ExceptionMatches(Errors().backend)) NameGraph();
  refusal_.TakePending();
  return false;
}

// Adds to the notes of the pending exception which graph it was.
void Publisher::NameGraph() const {
  const Position at = PositionAt(code_, offset_);
  const Ref<> error = TakeException();
  const std::string note =
      absl::StrCat("the graph of ", at.function.str(), " that begins at ", at.file.str(), ":", at.line);
  if (!Ref<>::Steal(PyObject_CallMethod(error.get(), "add_note", "s", note.c_str()))) PyErr_Clear();
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.get())), error.get());
}

double Publisher::TakeTime() {
  const auto now = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(now - std::exchange(began_, now)).count();
  store_.recording_seconds += seconds;
  return seconds;
}

bool Publisher::Publish(std::shared_ptr<Segment> segment, int offset, const Break* reason) {
  const auto& nodes = segment->ir.graph.nodes;
  const bool has_ops = std::any_of(nodes.begin(), nodes.end(), [](const Node& node) { return node.op.has_value(); });
  EntryPoint& entry = entry_point();
  if (!has_ops && entry.empty() && is_below_ && IsPackageCode(code_)) {
    // Work of a package between two breaks without any tensor is not a graph, and Python is as fast.
    entry.denials = SegmentCache::kMaxDenials;
    entry.holds_no_op = true;
    // At a start: segments that begin later in the frame, or continue in it, find it as they did in this recording.
    if (offset_ == StartOffset(code_) && !went_on_) entry.wait_offset = offset;
    TakeTime();
    return false;
  }
  segment->entry_offset = offset_;
  if (!Compile(*segment)) {
    Abort({Reason::backend_failed, ""}, segment->ir.exit.at, true);
    return false;
  }
  segment->ir.name = store_.NextName(segment->ir.function);
  segment->recording_seconds = TakeTime();
  ++store_.recordings;
  if (IsLogged(LogEntry::Kind::kRecorded)) WriteSegmentLog(LogEntry::Kind::kRecorded, *segment);
  store_.Log({LogEntry::Kind::kRecorded, segment->ir.name, "", "", "", segment->ir.exit.at, {}});
  if (reason != nullptr) Log(LogEntry::Kind::kBreak, segment->ir.name, *reason, segment->ir.exit.at);
  NoteFollowed(*segment);
  store_.Publish(std::move(segment));
  return true;
}

// Where a frame does not run under the hook from its start, its later entry points and its callees' segments are lost.
void Publisher::NoteFollowed(const Segment& segment) {
  store_.FindOrAdd(code_, StartOffset(code_)).is_followed = true;
  for (const Segment::Caller& caller : segment.callers) {
    auto* const code = reinterpret_cast<PyCodeObject*>(caller.code.get());
    store_.FindOrAdd(code, StartOffset(code)).is_followed = true;
  }
}

}  // namespace frametap
