// KeptWarnings: the warnings of ops while a graph runs, perhaps without Python's lock. They reach Python afterwards,
// as from torch's bindings.
#pragma once

#include <c10/util/Exception.h>

#include <vector>

namespace frametap {

class KeptWarnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { warnings_.push_back(warning); }
  bool empty() const { return warnings_.empty(); }
  // False with a Python exception set: the program's filters have made one an error.
  bool TellPython();

 private:
  std::vector<c10::Warning> warnings_;
};

}  // namespace frametap
