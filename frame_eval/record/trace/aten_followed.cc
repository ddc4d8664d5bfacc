// Ops below which frames of Python run: their kernels are Python code.
#include <ATen/SavedTensorHooks.h>

#include "frame_eval/record/trace/aten_recorder.h"
#include "ir/ops/op_rows.h"
#include "ir/passes/writes.h"

namespace frametap {

// Hooks on saved tensors (checkpointing) run in an op of torch as well; they are what they are for.
void AtenRecorder::MeetFrameBelow() {
  if (running_ == nullptr || pending) return;
  if (IsOfTorch(running_->op) && !at::SavedTensorDefaultHooks::get_tls_state().stack.empty()) return;
  pending = Break{Reason::python_kernel, c10::toString(running_->op.operator_name())};
}

const c10::OperatorHandle* AtenRecorder::OpToFollow() const {
  return running_ == nullptr || pending || IsOfTorch(running_->op) ? nullptr : &running_->op;
}

void AtenRecorder::Follow() { running_->is_followed = true; }

NodeId AtenRecorder::AddFollowed(FollowedOp op) {
  DropNodes(op.since);
  const bool rank_by_size = op_facts.Of(*op.node.op).facts->size_dependent_rank;
  const NodeId id = AddOp(std::move(op.node), op.results, op.place, rank_by_size);
  std::vector<ValueId> written;
  ForEachWritten(graph_.node(id), [&written](ValueId value) { written.push_back(value); });
  NoteWritesTo(written);
  return id;
}

}  // namespace frametap
