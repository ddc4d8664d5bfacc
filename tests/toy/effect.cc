#include "frame_eval/replay/commit.h"

namespace frametap {

template <>
bool CommitEffect<Effect::Kind::kAppend>(const EffectStep& step) {
  return PyList_Append(step.target, step.value) == 0;
}

}  // namespace frametap
