// AtenPause: regions whose ops are not the program's own. They do not come to the recorder's fallback.
#pragma once

#include <c10/core/DispatchKey.h>

namespace frametap {

namespace aten {
// The key of the recorder's fallback lies above autograd, autocast and the tracer. torch has no kernel for it.
// torch itself excludes it while it builds tensors from Python data. So torch.tensor shows one lift_fresh and none of its
// inner ops.
constexpr c10::DispatchKey kKey = c10::DispatchKey::DeferredInit;
// Shows every op of this thread to the fallback, recorded or not (forced faults need the latter).
void SeeEveryOp(bool on);
// Ops under a recorded op (some restore the dispatch state from a snapshot and so undo the exclusion) and ops of paused
// regions are not outermost.
extern thread_local constinit int depth;
}  // namespace aten

// While alive, ops of this thread are not recorded.
class AtenPause {
 public:
  explicit AtenPause(int& depth = aten::depth) : depth_(depth) { ++depth_; }  // for who has looked it up before
  ~AtenPause() { --depth_; }
  AtenPause(const AtenPause&) = delete;
  AtenPause& operator=(const AtenPause&) = delete;

 private:
  int& depth_;
};

}  // namespace frametap
