#include "frame_eval/record/trace/thread_changes.h"

#include "guards/collect/guard_recorder.h"
#include "ir/dcheck.h"

namespace frametap {

void ThreadChanges::Rewind(const Mark& mark) {
  FT_DCHECK(mark.sets <= sets_.size() && mark.resets <= resets_);
  state = mark.state;
  backends = mark.backends;
  autocast_nesting = mark.autocast_nesting;
  sets_.erase(sets_.begin() + mark.sets, sets_.end());
  live_ = 0;
  for (ContextSet& set : sets_) {
    if (set.reset > mark.resets) set.reset = 0;
    if (set.reset == 0) ++live_;
  }
  resets_ = mark.resets;
}

void ThreadChanges::Read() {
  state = CurrentEagerState();
  backends = WorldState::BackendsNow();
}

void ThreadChanges::SetContext(PyObject* variable, uint32_t epoch) {
  sets_.push_back({variable, epoch});
  ++live_;
}

bool ThreadChanges::ResetContext(PyObject* variable, uint32_t token) {
  auto* const last = const_cast<ContextSet*>(LastSet(variable));
  if (last == nullptr || last->epoch != token) return false;
  FT_DCHECK(live_ > 0);
  last->reset = ++resets_;
  --live_;
  return true;
}

const ThreadChanges::ContextSet* ThreadChanges::LastSet(PyObject* variable) const {
  for (auto set = sets_.rbegin(); set != sets_.rend(); ++set) {
    if (set->variable == variable && set->reset == 0) return &*set;
  }
  return nullptr;
}

}  // namespace frametap
