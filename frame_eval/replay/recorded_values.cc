#include "frame_eval/replay/recorded_values.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <optional>

#include "absl/container/flat_hash_set.h"
#include "frame_eval/interpreter/hook.h"
#include "frame_eval/replay/run_graph.h"
#include "frame_eval/state/aten_pause.h"
#include "frame_eval/state/unexpanded.h"
#include "guards/objects/kept_warnings.h"
#include "guards/objects/thread_end.h"
#include "guards/objects/torch_tensor.h"
#include "ir/graph/eager_state.h"

namespace frametap {
namespace {

struct Copy {
  at::Tensor to, from;
};

bool HasPlainMemory(const at::Tensor& tensor) {
  return tensor.layout() == c10::kStrided && tensor.has_storage() && tensor.is_cpu() &&
         !tensor.key_set().has(c10::DispatchKey::Python) && at::has_internal_overlap(tensor) != at::MemOverlap::Yes;
}

std::optional<Copy> CopyOf(const at::Tensor& to, const at::Tensor& from) {
  if (!to.defined() || !from.defined()) return std::nullopt;
  if (to.sizes() != from.sizes() || to.scalar_type() != from.scalar_type()) return std::nullopt;
  const Copy copy{Unexpanded(to), Unexpanded(from)};
  if (!HasPlainMemory(copy.to) || copy.to.sizes() != copy.from.sizes()) return std::nullopt;
  return copy;
}

bool IsNumber(const c10::IValue& value, PyObject* object) {
  if (PyBool_Check(object)) return value.isBool() && value.toBool() == (object == Py_True);
  if (PyFloat_CheckExact(object)) {
    const double number = PyFloat_AS_DOUBLE(object);
    return value.isDouble() &&
           (value.toDouble() == number || (value.toDouble() != value.toDouble() && number != number));
  }
  int overflow = 0;
  return PyLong_CheckExact(object) && value.isInt() &&
         PyLong_AsLongLongAndOverflow(object, &overflow) == value.toInt() && overflow == 0;
}

std::vector<c10::IValue> RunAgain(Segment& segment, const RecordedRun& run) {
  KeptWarnings told_before;
  const c10::WarningUtils::WarningHandlerGuard warnings(&told_before);
  const HookPause frames;
  EagerStateScope state;
  state.Enter(segment.ir.graph.states[0]);
  NotePythonKernels();
  return segment.executable->Run(run.inputs);
}

class Values {
 public:
  Values(Segment& segment, const RecordedRun& run) : segment_(segment), run_(run) {
    for (const c10::IValue& input : run.inputs) {
      can_run_ = can_run_ && !input.isNone();
    }
    for (const at::Tensor& tensor : run.now) {
      if (tensor.defined() && tensor.has_storage()) older_.insert(tensor.storage().unsafeGetStorageImpl());
    }
    for (const uint32_t i : segment.written_inputs) can_run_ = can_run_ && IsCopied(i);
  }

  bool Take() {
    if (!can_run_) return false;
    const std::vector<c10::IValue> outputs = RunAgain(segment_, run_);
    if (!AddWrittenInputs() || !AddOutputs(outputs)) return false;  // V1
    const at::AutoDispatchBelowADInplaceOrView below;               // V2
    for (const Copy& copy : copies_) copy.to.copy_(copy.from);
    return true;
  }

 private:
  bool IsCopied(uint32_t i) const {
    if (!run_.inputs[i].isTensor() || !run_.now[i].defined()) return false;
    const at::Tensor& first = run_.inputs[i].toTensor();
    return first.has_storage() && run_.now[i].has_storage() && !first.is_alias_of(run_.now[i]);
  }

  bool AddWrittenInputs() {
    for (const uint32_t i : segment_.written_inputs) {
      const auto copy = CopyOf(run_.now[i], run_.inputs[i].toTensor());
      if (!copy) return false;
      copies_.push_back(*copy);
    }
    return true;
  }

  bool AddOutputs(const std::vector<c10::IValue>& outputs) {
    const std::vector<ValueId>& ids = segment_.ir.graph.outputs;
    for (const auto& [id, object] : run_.objects) {
      const auto at = std::find(ids.begin(), ids.end(), id);
      if (at == ids.end()) continue;
      const c10::IValue& output = outputs[static_cast<size_t>(at - ids.begin())];
      if (!IsTensor(object.get())) {
        if (!IsNumber(output, object.get())) return false;
        continue;
      }
      const at::Tensor& tensor = TensorOf(object.get());
      // A part of an older tensor, which has its elements already.
      if (tensor.has_storage() && older_.contains(tensor.storage().unsafeGetStorageImpl())) continue;
      const auto copy = output.isTensor() ? CopyOf(tensor, output.toTensor()) : std::nullopt;
      if (!copy) return false;
      copies_.push_back(*copy);
    }
    return true;
  }

  Segment& segment_;
  const RecordedRun& run_;
  bool can_run_ = true;
  absl::flat_hash_set<const c10::StorageImpl*> older_;  // memory of inputs
  std::vector<Copy> copies_;
};

}  // namespace

bool TakeReplayedValues(Segment& segment, const RecordedRun& run) {
  if (run.has_gone_on || !segment.kernels.empty() || !segment.executable->releases_gil()) return false;
  try {
    const AtenPause below;
    return Values(segment, run).Take();
  } catch (const abi::__forced_unwind&) {
    WaitForProcessEnd();
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace frametap
