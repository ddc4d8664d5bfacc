// Words: places in memory, and what was there when a predicate held.
//   O1  While the word is the same, and the object it is in is, what was concluded from it still holds. A word that
//       differs proves nothing: the predicate has to be asked.
//   O2  A word is looked at only when it is known that the object it is in is alive.
#pragma once

#include <cstdint>
#include <vector>

namespace frametap {

class Word {
 public:
  explicit Word(const void* at) : at_(static_cast<const Bits*>(at)), was_(*at_) {}
  bool IsSame() const { return *at_ == was_; }
  void Renew() { was_ = *at_; }

 private:
  typedef uint64_t __attribute__((may_alias)) Bits;
  static_assert(sizeof(void*) == sizeof(Bits));
  const Bits* at_;
  Bits was_;
};

using Words = std::vector<Word>;

}  // namespace frametap
