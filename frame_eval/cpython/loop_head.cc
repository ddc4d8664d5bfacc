#include "frame_eval/cpython/loop_head.h"

#include <string_view>

#include "frame_eval/cpython/frame_view.h"

namespace frametap {

bool LoopTakesResult(PyCodeObject* code, int offset) {
  const int next = InstructionAt(code, offset).next;
  return std::string_view(InstructionAt(code, next).name) == "GET_ITER";
}

}  // namespace frametap
