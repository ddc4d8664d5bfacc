// EntryPoint: a place `(code, offset)` where recording or replay may begin, with the segments that may be replayed there.
//   Q1  A look-up gives every segment that may fit the call; the one that was hit last comes first.
//   Q2  The cost of a look-up depends on the differences between the segments, not on their number, where they guard
//       one fact in common (guards/check/discriminator.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "guards/check/discriminator.h"

namespace frametap {

struct Segment;

class EntryPoint {
 public:
  // Holds them: while one is checked, another thread may reset the store.
  using Candidates = absl::InlinedVector<std::shared_ptr<Segment>, 4>;

  void Add(std::shared_ptr<Segment> segment);
  Candidates LookUp(const Roots& roots) const;                   // Q1
  void MoveToFront(const Segment* segment, const Roots& roots);  // it was hit
  size_t size() const { return segments_.size(); }
  bool empty() const { return segments_.empty(); }
  const std::shared_ptr<Segment>& latest() const { return segments_.front(); }
  const std::vector<std::shared_ptr<Segment>>& segments() const { return segments_; }  // the latest first
  size_t callers() const { return callers_; }  // the most that one of them needs

  int wait_offset = -1;           // a recording from here held nothing: continue in Python and begin after this offset
  bool put_off = false;           // a recording was thrown away because of work that is done once
  bool ends_at_blocks = false;    // … because it ended in a block of inference mode: others end before one
  bool ends_at_handlers = false;  // … because it ended in a handler of its frame: others end before the exception
  bool alone = false;        // a recording that continued in the caller was given up: segments end with their frame
  bool holds_no_op = false;  // … because nothing ran on tensors: its frames are watched only if segments need them
  bool is_followed = false;  // for a start: a segment begins later in the code, or continues in it after a call
  int denials = 0;           // recordings given up; after `kMaxDenials` no other one is tried
  bool limit_told = false;

 private:
  static constexpr size_t kFew = 4;  // are looked at one after the other

  void Sort();

  std::vector<std::shared_ptr<Segment>> segments_;
  std::optional<Discriminator> by_;
  absl::flat_hash_map<uint64_t, std::vector<Segment*>> sorted_;
  size_t sort_at_ = kFew + 1;  // segments, for Sort to be worth its while
  size_t callers_ = 0;
};

}  // namespace frametap
