#include "frame_eval/state/aten_pause.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace frametap {

thread_local constinit int aten::depth = 0;

void aten::SeeEveryOp(bool on) { c10::impl::tls_set_dispatch_key_included(kKey, on); }

}  // namespace frametap
