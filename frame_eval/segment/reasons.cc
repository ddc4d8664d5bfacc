#include "frame_eval/segment/reasons.h"

namespace frametap {

const ReasonRow& RowOf(Reason reason) {
  static const ReasonRow kRows[] = {
#define BREAK(name, text, advice) {#name, text, advice, true, false},
#define ONCE(name, text, advice) {#name, text, advice, true, true},
#define ABORT(name, text, advice) {#name, text, advice, false, false},
#include "frame_eval/segment/reasons.def"
#undef BREAK
#undef ONCE
#undef ABORT
  };
  return kRows[static_cast<int>(reason)];
}

}  // namespace frametap
