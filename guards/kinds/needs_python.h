// The words of a miss where a look-up would run code of the program: __eq__ or __hash__ of a key.
#pragma once

namespace frametap {

inline constexpr char kNeedsPython[] = " cannot be looked up without running Python code";

}  // namespace frametap
