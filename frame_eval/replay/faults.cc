#include "frame_eval/replay/faults.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "frame_eval/checks/fault_observer.h"
#include "frame_eval/interpreter/hook.h"
#include "frame_eval/segment/error_classes.h"
#include "frame_eval/state/aten_pause.h"
#include "guards/objects/import.h"
#include "guards/objects/kept_warnings.h"
#include "guards/objects/torch_tensor.h"

namespace frametap {
namespace {

// `ValueError: kernel failed`. Runs the exception's __str__.
std::string TextOf(PyObject* error) {
  const Ref<> text = Ref<>::Steal(PyObject_Str(error));
  const char* words = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
  std::string out = absl::StrCat(Py_TYPE(error)->tp_name, ": ", words == nullptr ? "(no text)" : words);
  PyErr_Clear();
  return out;
}

// Raises BackendError(message) with `error` as its cause.
void RaiseFrom(const std::string& message, Ref<> error) {
  const Ref<> raised = Ref<>::Steal(PyObject_CallFunction(Errors().backend, "s", message.c_str()));
  if (!raised) return;
  PyException_SetCause(raised.get(), error.Release());
  PyErr_SetObject(Errors().backend, raised.get());
}

void LogFault(SegmentCache& store, const Segment& segment, const std::string& text) {
  const Position& at = segment.ir.exit.at;
  store.Log({LogEntry::Kind::kFault, segment.ir.name, "", text, "", at, {}});
  if (segment.faults != kMostFaults || store.options().strict) return;
  const ReasonRow& row = RowOf(Reason::replay_failed);
  store.Log(
      {LogEntry::Kind::kAbort, segment.ir.name, row.name, absl::StrCat(row.text, ": ", text), row.advice, at, {}});
}

}  // namespace

Ref<> TakeException() {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback != nullptr && value != nullptr) PyException_SetTraceback(value, traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  return Ref<>::Steal(value);
}

bool RunsOnlyOpsOfTorch(const Segment& segment) {
  for (const Node& node : segment.ir.graph.nodes) {
    if (!node.op) continue;
    const absl::string_view name(node.op->operator_name().name);
    if (name.substr(0, 6) != "aten::" && name.substr(0, 7) != "prims::") return false;
  }
  return true;
}

bool RecordedOpsRaise(Segment& segment, const std::vector<c10::IValue>& inputs) {
  const ErrScope keep;
  const HookPause pause;
  const AtenPause uncounted;
  KeptWarnings unheard;
  const c10::WarningUtils::WarningHandlerGuard handler(&unheard);
  try {
    absl::StatusOr<std::unique_ptr<Executable>> reference = MakeReferenceBackend()->Compile(segment.ir.graph);
    if (!reference.ok()) return true;
    const auto observed = fault_observer != nullptr ? fault_observer->BeginRun(segment) : nullptr;
    (*reference)->Run(inputs);
    if (observed != nullptr) [[unlikely]]
      observed->Done();
    return false;
  } catch (...) {
    SetPythonErrorFromException();
    PyErr_Clear();
    return true;
  }
}

bool MayBeFault() {
  static PyObject* const no_memory = [] {
    const ErrScope keep;  // nothing is imported with an exception pending
    const Ref<> torch = ImportModule("torch");
    PyObject* type = torch ? PyObject_GetAttrString(torch.get(), "OutOfMemoryError") : nullptr;
    return type != nullptr ? type : Ref<>::New(PyExc_MemoryError).Release();
  }();
  return PyErr_ExceptionMatches(PyExc_Exception) && !PyErr_ExceptionMatches(PyExc_MemoryError) &&
         !PyErr_ExceptionMatches(PyExc_RecursionError) && !PyErr_ExceptionMatches(no_memory);
}

bool TellFault(SegmentCache& store, Segment& segment, bool undone) {
  const HookPause pause;  // Python code of exceptions and warnings is not the program's
  Ref<> error = TakeException();
  if (!error) return true;
  const std::string what = absl::StrCat("the backend '", store.backend().name(), "' raised ", TextOf(error.get()));
  ++segment.faults;
  ++store.faults;
  LogFault(store, segment, what);
  if (segment.faults >= kMostFaults && !store.options().strict) segment.given_up = true;
  const std::string where = absl::StrCat(" in the graph ", segment.ir.name, " (", ToString(segment.ir.exit.at), ")");
  if (!undone) {
    RaiseFrom(
        absl::StrCat(what, where,
                     ". The graph changes tensors or draws random numbers, and what it did so far cannot be taken "
                     "back. The program's own ops do not raise for such sizes."),
        std::move(error));
    return false;
  }
  if (store.options().strict) {
    RaiseFrom(absl::StrCat(what, where,
                           ", where the program's own ops do not raise. Without options={'strict': True}, plain Python "
                           "would run the call."),
              std::move(error));
    return false;
  }
  if (segment.faults > 1) return true;
  const std::string message = absl::StrCat(
      what, where,
      ", where the program's own ops do not raise. Plain Python ran the call, and will run all calls of this "
      "graph after ",
      kMostFaults, " such faults. frametap.explain(f) lists them; options={'strict': True} makes each an error.");
  return PyErr_WarnEx(Errors().warning, message.c_str(), 1) == 0;
}

void Suspicion::Take(std::shared_ptr<Segment> segment) {
  const bool may_be = !segment->refuted && MayBeFault() && segment->callers.empty() && !segment->ErrorsAreHandled();
  Ref<> error = TakeException();
  if (!may_be || !error) return;
  segment_ = std::move(segment);
  error_ = std::move(error);
}

bool Suspicion::Confirm(SegmentCache& store) {
  const std::shared_ptr<Segment> segment = std::move(segment_);
  const Ref<> error = std::exchange(error_, Ref<>());
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.get())), error.get());
  return TellFault(store, *segment, true);
}

}  // namespace frametap
