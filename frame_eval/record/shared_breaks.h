// Breaks that several topics give, with one text each.
#pragma once

#include "frame_eval/segment/reasons.h"

namespace frametap {

inline Break TooDeep() { return {Reason::unknown_operation, "an object nested very deeply"}; }
inline Break DictOfWrittenObject() { return {Reason::unknown_operation, "a dict whose object was written to"}; }
inline Break MembershipByElements() { return {Reason::value_of_tensor, "a test for membership"}; }
inline Break NumPyUnderCompiler() { return {Reason::numpy_code, "NumPy under a backend that compiles"}; }

}  // namespace frametap
