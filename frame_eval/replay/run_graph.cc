#include "frame_eval/replay/run_graph.h"

#include <ATen/core/grad_mode.h>
#include <functional>
#include <optional>

#include "absl/hash/hash.h"
#include "frame_eval/checks/fault_observer.h"
#include "frame_eval/checks/self_checking.h"
#include "frame_eval/interpreter/hook.h"
#include "frame_eval/replay/faults.h"
#include "frame_eval/replay/rollback.h"
#include "frame_eval/segment/error_classes.h"
#include "frame_eval/segment/graph_inputs.h"
#include "frame_eval/state/aten_pause.h"
#include "guards/cpython/watch.h"
#include "guards/objects/kept_warnings.h"
#include "guards/objects/thread_end.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/well_known_objects.h"
#include "ir/autocast.h"
#include "ir/graph/builtin_op.h"
#include "ir/ops/below_autograd.h"

namespace frametap {

void NotePythonKernels() {
  NoteKernels(absl::HashOf(PySet_GET_SIZE(Objects().python_kernels), DictVersion(Objects().finalizers)));
}

GuardLine DecisionLine(Segment& segment, size_t i) {
  const Decisions& decisions = segment.Shown().decisions;
  const Graph& graph = decisions.graph;
  GuardLine line;
  ValueId value = graph.outputs[i];
  if (NodeId def = graph.value(value).def; def.valid() && graph.node(def).where) {
    line.why = graph.node(def).where->position;
  }
  while (graph.value(value).def.valid()) {
    ValueId first;
    ForEachUse(graph.node(graph.value(value).def).args, [&](ValueId use) {
      if (!first.valid()) first = use;
    });
    if (!first.valid()) break;
    value = first;
  }
  line.source = decisions.sources.empty() ? SourceId() : decisions.sources[0];
  for (size_t k = 0; k < graph.inputs.size(); ++k) {
    if (graph.inputs[k] == value) line.source = decisions.sources[k];
  }
  line.predicate = Predicate{Predicate::Form::kBranch, decisions.outcomes[i] ? "True" : "False"};
  return line;
}

bool DecisionsHold(Segment& segment, MissReport* miss) {
  if (segment.decisions == nullptr) return true;
  const Decisions& decisions = segment.ir.decisions;
  std::vector<c10::IValue> inputs(decisions.sources.size()), outputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (GatherInput(*segment.guards, decisions.sources[i], &inputs[i])) continue;
    PyErr_Clear();
    return false;
  }
  try {
    AtenPause uncounted;  // ops that the program has yet to come to
    NotePythonKernels();
    // With Python's lock: the guards' registers hold until Python code runs.
    outputs = segment.decisions->Run(inputs);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].toTensor().is_nonzero() == decisions.outcomes[i]) continue;
      if (miss != nullptr) {
        const GuardLine line = DecisionLine(segment, i);
        if (line.source.valid()) miss->source = segment.Shown().sources.Name(line.source);
        miss->want = ToString(*line.predicate);
        miss->got = decisions.outcomes[i] ? "False" : "True";
        miss->why = "the elements of the tensor differ";
        miss->line = line.why;
      }
      return false;
    }
    return true;
  } catch (const abi::__forced_unwind&) {
    WaitForProcessEnd();
  } catch (...) {
    return false;  // the recording raises the exception where the program does
  }
}

namespace {

// A segment that ends in a block of autocast continues with the casts of the run: the cache is not emptied between
// them.
class KeptAutocastCache {
 public:
  explicit KeptAutocastCache(const SegmentIr& ir) {
    if (ir.graph.states.size() == 1) return;
    for (const Effect& effect : ir.effects) {
      keeps_ = keeps_ || (effect.kind == Effect::Kind::kState && effect.state == StateSwitch::kAutocastNesting);
    }
    if (keeps_) at::autocast::increment_nesting();
  }
  ~KeptAutocastCache() {
    if (keeps_ && at::autocast::decrement_nesting() == 0 && !succeeded_) at::autocast::clear_cache();
  }
  KeptAutocastCache(const KeptAutocastCache&) = delete;
  KeptAutocastCache& operator=(const KeptAutocastCache&) = delete;
  void Succeeded() { succeeded_ = true; }

 private:
  bool keeps_ = false;
  bool succeeded_ = false;
};

// How a run ended that the pending exception has ended. `take_back`: undoes what it has changed; false if that cannot be.
Ran EndOfRaised(Segment& segment, GraphInputs& inputs, const Rollback& rollback,
                const std::function<bool()>& take_back) {
  const bool is_undone = take_back();
  // An interruption of the program (Ctrl-C in an op that is Python code) is not raised a second time.
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return Ran::kRaised;
  if (inputs.executable().runs_recorded_ops()) return is_undone ? Ran::kOpRaised : Ran::kRaised;
  // Its result differs from the graph: a fault of the backend, not of a call. But a backend that compiles for the sizes of
  // this call cannot do so where the program's own ops raise.
  if (Errors().backend != nullptr && PyErr_ExceptionMatches(Errors().backend)) {
    if (!is_undone || !RunsOnlyOpsOfTorch(segment)) return Ran::kRaised;
    const bool is_of_program = RecordedOpsRaise(segment, inputs.values());
    return take_back() && is_of_program ? Ran::kUndone : Ran::kRaised;
  }
  const bool may_be_fault = MayBeFault() && RunsOnlyOpsOfTorch(segment);
  if (!may_be_fault) return is_undone ? Ran::kUndone : Ran::kRaised;
  if (!is_undone) return rollback.ops_cannot_raise() ? Ran::kBroken : Ran::kRaised;
  const bool is_of_program = RecordedOpsRaise(segment, inputs.values());
  if (!take_back()) return Ran::kRaised;
  return is_of_program ? Ran::kUndone : Ran::kFault;
}

}  // namespace

Ran RunGraph(Segment& segment, std::vector<c10::IValue>* outputs) {
  if (segment.given_up) return Ran::kUndone;
  GraphInputs inputs(segment);
  if (!inputs.Gather()) return Ran::kUndone;
  if (SelfChecking() && !inputs.AreRight()) {
    PyErr_SetString(PyExc_SystemError, "frametap self-check: a weight of the graph is another one");
    return Ran::kRaised;
  }
  // A session leaves frames of kernels in Python alone, as it does below a recorded op.
  std::optional<AtenPause> below;
  if (!segment.kernels.empty()) below.emplace();
  const auto observed = fault_observer != nullptr ? fault_observer->BeginRun(segment) : nullptr;
  Rollback rollback(segment, inputs.values());
  if (rollback.is_refused()) return Ran::kRefused;
  bool changed = false;
  KeptWarnings warnings;
  const auto may_restart = [&] {
    const ErrScope keep;
    const bool is_undone = segment.restartable || !changed || rollback.TakeBack();
    if (is_undone && observed != nullptr) [[unlikely]]
      observed->TakenBack();
    return is_undone;
  };
  NotePythonKernels();
  KeptAutocastCache casts(segment.ir);
  try {
    AllocZone outside(false);
    std::optional<c10::WarningUtils::WarningHandlerGuard> keep(&warnings);
    Executable& executable = inputs.executable();
    if (executable.releases_gil()) {
      // The thread's own state goes with it: nothing of Python is touched until the lock is back.
      const UnlockedToThreadEnd unlocked;
      *outputs = executable.Run(inputs.values(), &changed);
    } else {
      HookPause pause;  // the executable's own Python code is not the program's
      *outputs = executable.Run(inputs.values(), &changed);
    }
    if (observed != nullptr) [[unlikely]]
      observed->Done();
    rollback.Succeeded();
    casts.Succeeded();
    keep.reset();
    if (warnings.empty()) return Ran::kThrough;
    HookPause pause;  // as below a binding
    if (warnings.TellPython()) return Ran::kThrough;
    return may_restart() ? Ran::kUndone : Ran::kRaised;
  } catch (const abi::__forced_unwind&) {
    WaitForProcessEnd();
  } catch (...) {
    bool is_of_graph = false;
    try {
      throw;
    } catch (const AssumptionFails&) {
      segment.refuted = is_of_graph = true;
    } catch (const NoResult&) {
      is_of_graph = true;
    } catch (...) {
    }
    SetPythonErrorFromException();
    if (!is_of_graph) return EndOfRaised(segment, inputs, rollback, may_restart);
    return may_restart() ? Ran::kUndone : Ran::kRaised;
  }
}

}  // namespace frametap
