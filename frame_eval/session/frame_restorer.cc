#include "frame_eval/session/frame_restorer.h"

#include <utility>

#include "frame_eval/cpython/frame_view.h"
#include "ir/dcheck.h"

namespace frametap {
namespace {

void ReplaceStack(FrameState& f, std::vector<Ref<>> items) {
  for (int i = f.depth; i-- > 0;) Py_CLEAR(f.objects[f.nlocalsplus + i]);
  f.depth = static_cast<int>(items.size());
  for (int i = 0; i < f.depth; ++i) {
    f.objects[f.nlocalsplus + i] = items[static_cast<size_t>(i)].Release();
    f.shadows[f.nlocalsplus + i] = Shadow();
  }
}

}  // namespace

Tracer::Go FrameRestorer::LeaveWith(FrameState& f, FrameRestore restore) {
  ReplaceStack(f, std::move(restore.content.stack));
  f.result = restore.result.Release();
  if (restore.yields != nullptr) {
    FT_DCHECK(restore.content.locals.size() == restore.yields->slots.size());
    for (size_t i = 0; i < restore.content.locals.size(); ++i) {
      const Ref<> old =
          Ref<>::Steal(std::exchange(f.objects[restore.yields->slots[i]], restore.content.locals[i].Release()));
    }
    f.offset = restore.yields->offset;
  }
  if (ascending_ != nullptr && last_to_leave_ == &f) ascending_.reset();
  return restore.yields != nullptr ? Tracer::Go::kYield : Tracer::Go::kReturn;
}

Tracer::Go FrameRestorer::UnwindTo(FrameState& f, std::vector<FrameRestore> leaving, FrameRestore restore) {
  if (leaving.empty()) return Resume(f, std::move(restore));
  FrameState* target = &f;
  ascending_ = std::make_unique<SignalsHeld>();
  for (FrameRestore& one : leaving) {
    FrameState* left = std::exchange(target, NoteOf(*target).caller);
    FT_DCHECK(target != nullptr);
    NoteOf(*left).entry.restore = std::make_unique<FrameRestore>(std::move(one));
  }
  NoteOf(*target).entry.restore = std::make_unique<FrameRestore>(std::move(restore));
  last_to_leave_ = target;
  return Tracer::Go::kReload;  // every frame is asked again
}

Tracer::Go FrameRestorer::Resume(FrameState& f, FrameRestore restore) {
  if (restore.leaves) return LeaveWith(f, std::move(restore));
  ascending_.reset();
  Restore(f, std::move(restore));
  return Tracer::Go::kReload;
}

void FrameRestorer::Restore(FrameState& f, FrameRestore restore) {
  const SnapshotFrame& frame = restore.segment->ir.exit.frames[restore.frame];
  FT_DCHECK(restore.content.locals.size() == frame.slots.size());
  const bool is_new = restore.frame > 0;
  if (is_new && f.function->func_closure != nullptr) {
    PyObject* closure = f.function->func_closure;
    const int first = f.nlocalsplus - static_cast<int>(PyTuple_GET_SIZE(closure));
    for (int i = first; i < f.nlocalsplus; ++i) {
      if (f.objects[i] == nullptr) f.objects[i] = Ref<>::New(PyTuple_GET_ITEM(closure, i - first)).Release();
    }
  }
  for (size_t i = 0; i < frame.slots.size(); ++i) {
    PyObject** slot = &f.objects[frame.slots[i]];
    if (!is_new && *slot != nullptr && KindOfSlot(f.code, frame.slots[i]) == SlotKind::kCell && PyCell_Check(*slot)) {
      PyCell_Set(*slot, restore.content.locals[i].get());
      continue;
    }
    PyObject* old = *slot;
    *slot = restore.content.locals[i].Release();
    Py_XDECREF(old);
  }
  ReplaceStack(f, std::move(restore.content.stack));
  f.offset = frame.offset;
  EntryState& entry = NoteOf(f).entry;
  entry.skip_one = true;
  entry.awaited = std::move(restore.above);
}

}  // namespace frametap
