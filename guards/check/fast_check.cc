#include "guards/check/fast_check.h"

#include <algorithm>
#include <new>

#include "absl/container/inlined_vector.h"

namespace frametap {

FastCheck::Answer FastCheck::Check(CheckPlan& tree, const Roots& roots) {
  if (!stands_) return Answer::kUnknown;
  const uint64_t epoch = DictEpoch();
  const bool is_quiet = epoch == epoch_;  // Q4
  size_t word = 0, quiet = 0;
  const auto words_hold = [&](size_t end_word, size_t end_quiet) {
    const bool hold = is_quiet ? QuietHold(quiet, end_quiet) : WordsHold(tree, roots, word, end_word);
    word = end_word;
    quiet = end_quiet;
    return hold;
  };
  const auto unknown = [this] {
    stands_ = false;  // a proper check may fill registers, and then find that the guards do not hold
    return Answer::kUnknown;
  };
  for (const Left& stage : stages_) {
    for (const int32_t node : stage.followed) {
      if (!tree.Follow(node, roots)) return Answer::kMiss;
    }
    for (const uint32_t w : stage.kept) {
      if (!tree.watches[w].IsSame() && !Renew(tree, roots, w)) return unknown();
    }
    if (!words_hold(stage.end_word, stage.end_quiet)) return unknown();
    for (const uint32_t w : stage.loose) {
      if (!tree.watches[w].IsSame() && !tree.ReadAgain(&tree.watches[w])) return Answer::kMiss;
    }
  }
  if (!words_hold(words_.size(), quiet_.size()) || !tensors_.Hold()) return unknown();
  if (!AllHold(other_tensors_, tree.registers) || !checks_.Hold(tree.registers.data())) return Answer::kMiss;
  epoch_ = epoch;
  ++hits_;
  return Answer::kHit;
}

bool FastCheck::WordsHold(CheckPlan& tree, const Roots& roots, size_t begin, size_t end) {
  Word* const words = words_.data();
  for (Word *word = words + begin, *last = words + end; word != last; ++word) {
    if (word->IsSame()) [[likely]]
      continue;
    const size_t at = static_cast<size_t>(word - words);
    const auto version = std::lower_bound(versions_.begin(), versions_.end(), std::pair(at, uint32_t{0}));
    if (version == versions_.end() || version->first != at || !Renew(tree, roots, version->second)) return false;
    word->Renew();
  }
  return true;
}

bool FastCheck::QuietHold(size_t begin, size_t end) const {
  for (size_t i = begin; i < end; ++i) {
    if (!quiet_[i].IsSame()) [[unlikely]]
      return false;
  }
  return true;
}

// Something else has changed in the dict (a counter of the module, say): are the objects that count still the same?
bool FastCheck::Renew(CheckPlan& tree, const Roots& roots, uint32_t w) {
  Watch& watch = tree.watches[w];
  View& view = tree.views[watch.view];
  const auto changed = [&view] {
    view.changes += view.changes < kMostChanges;
    return false;
  };
  if (*watch.slot != watch.dict) return changed();
  absl::InlinedVector<PyObject*, 16> before;
  for (const KeyRead& read : view.reads) {
    if (read.child != kNoNode) before.push_back(tree.registers[read.child].object);
  }
  if (!tree.ReadAgain(&watch) || watch.dict == nullptr) return false;
  size_t i = 0;
  for (const KeyRead& read : view.reads) {
    if (read.child != kNoNode && tree.registers[read.child].object != before[i++]) return changed();
  }
  return IsBelowAsItWas(tree, roots, watch.view) || changed();
}

// Another object may have come to the address of one that has died.
bool FastCheck::IsBelowAsItWas(CheckPlan& tree, const Roots& roots, uint32_t view) const {
  auto below = std::lower_bound(below_.begin(), below_.end(), view,
                                [](const Below& one, uint32_t wanted) { return one.view < wanted; });
  for (; below != below_.end() && below->view == view; ++below) {
    const Reached before = tree.registers[below->node];
    if (below->fact != nullptr) {
      if (!below->fact->Holds(before)) return false;
    } else if (!tree.Follow(below->node, roots) || tree.registers[below->node].object != before.object) {
      return false;
    }
  }
  return true;
}

void FastCheck::Held(CheckPlan& tree) {
  if (hits_ > kLongestWait) wait_ = 1;
  if (++held_ < wait_) return;
  held_ = 0;
  hits_ = 0;
  wait_ = std::min(2 * wait_, kLongestWait);
  try {
    Take(tree);
    stands_ = true;
  } catch (const std::bad_alloc&) {
    stands_ = false;
  }
}

void FastCheck::Take(const CheckPlan& tree) {
  ++taken_;
  words_.clear();
  quiet_.clear();
  versions_.clear();
  stages_.clear();
  checks_ = Checks();
  below_.clear();
  std::vector<bool> is_held(tree.nodes.size());  // Q1
  constexpr uint32_t kPinned = ~uint32_t{0};
  std::vector<uint32_t> view_of(tree.nodes.size(), kPinned);  // of a held node: the view that leads to it
  const auto ask = [&](int32_t node, const Guard* guard) {
    const size_t before = words_.size();
    if (!guard->Words(tree.registers[node], &words_)) {
      checks_.contents.push_back({node, guard});
    } else if (words_.size() == before && tree.nodes[node].step < 0) {
      below_.push_back({view_of[node], node, guard});  // the facts of an item are asked as it is followed
    }
    quiet_.insert(quiet_.end(), words_.begin() + static_cast<std::ptrdiff_t>(before), words_.end());
  };
  const auto any_word = [&](const void* at) {
    words_.emplace_back(at);
    quiet_.push_back(words_.back());
  };
  const auto is_in_tuple = [&](int32_t node) {
    const int32_t parent = tree.nodes[node].parent;
    return tree.IsItem(node) && is_held[parent] && PyTuple_Check(tree.registers[parent].object);
  };
  const auto type_word = [&](int32_t node) { any_word(&tree.registers[node].object->ob_type); };
  for (const Stage& stage : tree.stages) {
    Left& left = stages_.emplace_back();
    for (const int32_t i : stage.followed) {
      const TreeNode& node = tree.nodes[i];
      if (!tree.IsPinned(i) && !is_in_tuple(i)) {
        left.followed.push_back(i);
        continue;
      }
      is_held[i] = true;
      if (!tree.IsPinned(i)) view_of[i] = view_of[node.parent];
      if (view_of[i] != kPinned) below_.push_back({view_of[i], i, nullptr});
      if (node.type != nullptr) type_word(i);
      for (const Guard* guard : node.on_bind) ask(i, guard);
    }
    for (uint32_t w = stage.first_watch; w < stage.end_watch; ++w) {
      const Watch& watch = tree.watches[w];
      const View& view = tree.views[watch.view];
      const bool is_followed = tree.nodes[view.owner].step >= 0 && !is_held[view.owner];
      if (view.changes == kMostChanges || watch.dict == nullptr || !(is_followed || is_held[view.owner])) {
        left.loose.push_back(w);
        continue;
      }
      if (is_followed) {
        left.kept.push_back(w);
      } else {
        if (view.dict != DictOf::kSelf) any_word(watch.slot);
        versions_.emplace_back(words_.size(), w);
        words_.emplace_back(DictVersionPlace(watch.dict));
      }
      for (const KeyRead& read : view.reads) {
        if (read.child == kNoNode) continue;
        is_held[read.child] = true;
        view_of[read.child] = watch.view;
      }
    }
    left.end_word = words_.size();
    left.end_quiet = quiet_.size();
  }
  TakeTensors(tree, is_held);
  for (const TypeCheck& c : tree.checks.types) {
    if (is_held[c.node]) {
      type_word(c.node);
    } else {
      checks_.types.push_back(c);
    }
  }
  for (const DictLengthCheck& c : tree.checks.lengths) {
    if (is_held[c.node]) {
      words_.emplace_back(DictLengthPlace(tree.registers[c.node].object));
    } else {
      checks_.lengths.push_back(c);
    }
  }
  for (const ContentCheck& c : tree.checks.contents) {
    if (is_held[c.node]) {
      ask(c.node, c.guard);
    } else {
      checks_.contents.push_back(c);
    }
  }
  for (const PairCheck& c : tree.checks.pairs) {
    if (!is_held[c.a] || !is_held[c.b]) checks_.pairs.push_back(c);
  }
  checks_.numbers = tree.checks.numbers;
  std::stable_sort(below_.begin(), below_.end(), [](const Below& a, const Below& b) { return a.view < b.view; });
}

void FastCheck::TakeTensors(const CheckPlan& tree, const std::vector<bool>& is_held) {
  tensors_.Clear();
  other_tensors_.clear();
  holds_tensor_.assign(tree.nodes.size(), false);
  for (const TensorCheck& c : tree.tensors) {
    if (!is_held[c.node] || c.shape != nullptr) other_tensors_.push_back(c);
    if (!is_held[c.node]) continue;
    tensors_.Add(tree.registers[c.node].object, c.basics);
    holds_tensor_[c.node] = true;
  }
}

}  // namespace frametap
