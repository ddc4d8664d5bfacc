#include "frame_eval/segment/entry_point.h"

#include <algorithm>
#include <utility>

#include "frame_eval/segment/segment.h"

namespace frametap {

void EntryPoint::Add(std::shared_ptr<Segment> segment) {
  callers_ = std::max(callers_, segment->callers.size());
  segments_.insert(segments_.begin(), std::move(segment));
  if (segments_.size() >= sort_at_) return Sort();
  if (!by_) return;
  if (const std::optional<uint64_t> key = by_->KeyOf(*latest()->guards)) {
    std::vector<Segment*>& alike = sorted_[*key];
    alike.insert(alike.begin(), latest().get());
  } else {
    by_.reset();
  }
}

// Sorted again whenever their number has doubled: a fact that separates a few need not separate many.
void EntryPoint::Sort() {
  sort_at_ = 2 * segments_.size();
  sorted_.clear();
  std::vector<const GuardTree*> trees;
  for (const auto& segment : segments_) trees.push_back(segment->guards.get());
  by_ = Discriminator::Of(trees);
  if (!by_) return;
  for (const auto& segment : segments_) sorted_[by_->KeyOf(*segment->guards).value()].push_back(segment.get());
}

EntryPoint::Candidates EntryPoint::LookUp(const Roots& roots) const {
  if (!by_) return Candidates(segments_.begin(), segments_.end());
  Candidates found;
  if (const auto it = sorted_.find(by_->KeyAt(roots)); it != sorted_.end()) {
    for (Segment* segment : it->second) found.push_back(segment->shared_from_this());
  }
  return found;
}

void EntryPoint::MoveToFront(const Segment* segment, const Roots& roots) {
  const auto move = [segment](auto& segments) {
    const auto it =
        std::find_if(segments.begin(), segments.end(), [&](const auto& other) { return &*other == segment; });
    if (it != segments.end()) std::iter_swap(segments.begin(), it);
  };
  if (!by_) return move(segments_);
  if (const auto it = sorted_.find(by_->KeyAt(roots)); it != sorted_.end()) move(it->second);
}

}  // namespace frametap
