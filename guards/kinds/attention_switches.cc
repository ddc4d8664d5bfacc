#include "guards/kinds/attention_switches.h"

#include <ATen/Context.h>

namespace frametap {

AttentionSwitches AttentionSwitches::Now() {
  const at::Context& context = at::globalContext();
  return {context.userEnabledFlashSDP(), context.userEnabledMathSDP(), context.userEnabledMemEfficientSDP(),
          context.userEnabledCuDNNSDP()};
}

AttentionSwitches AttentionSwitches::FromNumber(int64_t number) {
  return {(number & 1) != 0, (number & 2) != 0, (number & 4) != 0, (number & 8) != 0};
}

AttentionSwitches AttentionSwitches::FromBackends(uint16_t backends) {
  return FromNumber(backends >> kFirstAttentionBit);
}

void AttentionSwitches::Set() const {
  at::Context& context = at::globalContext();
  context.setSDPUseFlash(flash);
  context.setSDPUseMath(math);
  context.setSDPUseMemEfficient(mem_efficient);
  context.setSDPUseCuDNN(cudnn);
}

}  // namespace frametap
