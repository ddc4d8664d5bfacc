#include "frame_eval/state/random_state.h"

#include <ATen/CPUGeneratorImpl.h>

#include <mutex>

namespace frametap {

at::Tensor RandomState() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return at::Tensor(generator.getIntrusivePtr()->get_state());
}

void SetRandomState(const at::Tensor& state) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.getIntrusivePtr()->set_state(*state.unsafeGetTensorImpl());
}

}  // namespace frametap
