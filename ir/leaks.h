// Leaks: which objects of ours are alive when the process ends.
//   K1  A class that owns graphs, tensors or Python objects beyond one call has a member `Counted<"its name, plural">`.
//   K2  Counting is always on (one addition an object). The report is for tests: nothing is written if nothing is left.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace frametap {

class AliveCount {
 public:
  explicit AliveCount(const char* what);
  void Add(int64_t n) { count_.fetch_add(n, std::memory_order_relaxed); }
  int64_t count() const { return count_.load(std::memory_order_relaxed); }
  const char* what() const { return what_; }
  const AliveCount* next() const { return next_; }

 private:
  const char* what_;
  const AliveCount* next_;
  std::atomic<int64_t> count_ = 0;
};

template <size_t kSize>
struct CountedName {
  consteval CountedName(const char (&name)[kSize]) { std::copy_n(name, kSize, text); }  // NOLINT: a literal is meant
  char text[kSize];
};

template <CountedName kName>
class Counted {
 public:
  Counted() { alive_.Add(1); }
  Counted(const Counted&) : Counted() {}
  Counted& operator=(const Counted&) { return *this; }
  ~Counted() { alive_.Add(-1); }

 private:
  static inline AliveCount alive_{kName.text};
};

// Writes "frametap: left at exit, 2 segments, 1 sessions" to the standard error stream. For Py_AtExit.
void ReportLeaks();

}  // namespace frametap
