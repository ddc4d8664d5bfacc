// FastCheck: the quick answer of a guard tree. The facts of the last hit stand while the words that they rested on do.
//   Q1  Only objects that are held all the time have words: what segments pin, and what a dict of an unchanged version
//       or a tuple of these holds. An object at an equal address reached in another way may be another one, so it is
//       followed and asked. If a view was read again, and found the same addresses, what follows from them is asked again:
//       items of tuples, and facts that can have no word.
//   Q2  A view that has been another dict, or got other objects, kMostChanges times goes back to being read and checked
//       as what it is.
//   Q3  After a doubt the tree is checked properly, and words are taken again, ever more seldom where they do not last.
//   Q4  As long as no dict of the process has changed (DictEpoch), the dicts that were seen to be as before still are.
//       Half of the words state no more than that.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "guards/check/check_plan.h"
#include "guards/check/pinned_weights.h"
#include "guards/kinds/words.h"

namespace frametap {

class FastCheck {
 public:
  enum class Answer : uint8_t { kUnknown, kMiss, kHit };

  // Types' look-ups have been seen to hold.
  Answer Check(CheckPlan& tree, const Roots& roots);
  void Held(CheckPlan& tree);  // properly checked

  // After a hit: another one whenever words were taken, 0 if there are none.
  uint64_t number() const { return stands_ ? taken_ : 0; }
  // The tensor at the node has been compared, and which one it is.
  bool Holds(int32_t node) const { return node != kNoNode && holds_tensor_[node]; }

 private:
  // For a stage of the tree, in this order: each part relies on the facts that the ones before have confirmed.
  struct Left {
    std::vector<int32_t> followed;
    std::vector<uint32_t> kept;  // watches of objects that are followed
    size_t end_word = 0, end_quiet = 0;
    std::vector<uint32_t> loose;  // watches that have no words
  };

  void Take(const CheckPlan& tree);
  void TakeTensors(const CheckPlan& tree, const std::vector<bool>& is_held);
  bool WordsHold(CheckPlan& tree, const Roots& roots, size_t begin, size_t end);
  bool QuietHold(size_t begin, size_t end) const;
  bool Renew(CheckPlan& tree, const Roots& roots, uint32_t watch);
  bool IsBelowAsItWas(CheckPlan& tree, const Roots& roots, uint32_t view) const;

  static constexpr uint32_t kLongestWait = 64;
  static constexpr uint8_t kMostChanges = 3;

  bool stands_ = false;
  uint32_t held_ = 0, wait_ = 1;  // proper checks since words were taken, and how many there must be
  uint64_t hits_ = 0;             // since words were taken
  uint64_t taken_ = 0;
  uint64_t epoch_ = 0;  // DictEpoch at the last hit
  Words words_;
  Words quiet_;                                        // those that may differ though no dict has changed (Q4)
  std::vector<std::pair<size_t, uint32_t>> versions_;  // the words that are versions of dicts, and their watches
  std::vector<Left> stages_;
  // Items of tuples, and facts of objects, that have no word: they cannot change while the view that leads to them is as
  // it was. By view, parents first.
  struct Below {
    uint32_t view;
    int32_t node;
    const Guard* fact;  // null: an item
  };
  std::vector<Below> below_;
  PinnedWeights tensors_;
  std::vector<bool> holds_tensor_;  // by node: it is among them
  std::vector<TensorCheck> other_tensors_;
  Checks checks_;
};

}  // namespace frametap
