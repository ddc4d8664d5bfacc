// The slot and the frame that a root source names (Source::index of L, C, S and F). Frame 0 is the frame of the entry,
// frame 1 its caller, and so on.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace frametap {

inline int64_t FrameSlot(int frame, int slot) { return int64_t{frame} << 32 | slot; }
inline int FrameOf(int64_t index) { return static_cast<int>(index >> 32); }
inline int SlotOf(int64_t index) { return static_cast<int>(index & 0x7fffffff); }

// 'L', 'C', 'S' or 'F' if the word is such a letter and the number of a frame ("L1"), else 0.
inline char FrameLetterOf(const std::string& word, int* frame) {
  if (word.size() < 2 || std::string_view("LCSF").find(word[0]) == std::string_view::npos || word[1] == '0') return 0;
  *frame = 0;
  for (size_t i = 1; i < word.size(); ++i) {
    if (word[i] < '0' || word[i] > '9' || *frame > 100000) return 0;
    *frame = *frame * 10 + (word[i] - '0');
  }
  return word[0];
}

}  // namespace frametap
