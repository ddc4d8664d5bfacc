// TruthTest: an instruction that asks for the truth of the value on top of the stack, and where the code continues.
#pragma once

#include <Python.h>

#include <optional>

namespace frametap {

struct TruthTest {
  int if_true = 0, if_false = 0;                 // byte offsets
  bool keeps_true = false, keeps_false = false;  // the value stays on the stack (`and`, `or`)
  bool negates = false;                          // `not`: the opposite takes the value's place
};

// Returns the test of the instruction at a byte offset, and none if it is another instruction.
std::optional<TruthTest> TruthTestAt(PyCodeObject* code, int offset);

}  // namespace frametap
