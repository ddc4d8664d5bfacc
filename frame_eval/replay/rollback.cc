#include "frame_eval/replay/rollback.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "absl/hash/hash.h"
#include "frame_eval/segment/changes.h"
#include "frame_eval/state/aten_pause.h"
#include "frame_eval/state/random_state.h"

namespace frametap {
namespace {

constexpr size_t kMostSizes = 4096;

}  // namespace

Rollback::Rollback(Segment& segment, const std::vector<c10::IValue>& inputs) : segment_(segment) {
  refused_ = !segment.restartable && !segment.undoable;
  if (!segment.undoable) return;
  sizes_ = SizesOf(segment, inputs);
  const bool known = segment.sizes_that_ran.contains(sizes_);
  cannot_raise_ = known && !segment.raises_on_elements;
  if (cannot_raise_) return;
  AtenPause pause;
  at::AutoDispatchBelowADInplaceOrView below;
  size_t bytes = 0;
  for (const uint32_t i : segment.written_inputs) {
    const at::Tensor& tensor = inputs[i].toTensor();
    bytes += tensor.nbytes();
  }
  refused_ = segment.errors_are_seen;
  if (known && bytes > kMostBytesCopied) return;
  try {
    for (const uint32_t i : segment.written_inputs) {
      saved_.emplace_back(inputs[i].toTensor());
    }
    if (segment.uses_random) random_state_ = RandomState();
  } catch (const std::exception&) {
    return;  // no memory for copies
  }
  armed_ = true;
  refused_ = false;
}

Rollback::~Rollback() = default;

void Rollback::Succeeded() {
  if (!armed_) return;
  if (segment_.sizes_that_ran.size() == kMostSizes) segment_.sizes_that_ran.clear();
  segment_.sizes_that_ran.insert(sizes_);
}

bool Rollback::TakeBack() {
  if (!armed_) return false;
  AtenPause pause;
  at::AutoDispatchBelowADInplaceOrView below;
  try {
    for (const TensorState& saved : saved_) saved.RestoreElements();
    for (const TensorState& saved : saved_) saved.RestoreHistory();
    if (random_state_.defined()) SetRandomState(random_state_);
  } catch (const std::exception&) {
    return false;
  }
  return true;
}

}  // namespace frametap
