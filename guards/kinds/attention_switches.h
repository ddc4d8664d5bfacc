// AttentionSwitches: which kernels scaled_dot_product_attention may choose. They are state of the process:
// torch.backends.cuda.enable_flash_sdp and torch.nn.attention.sdpa_kernel set them.
//   S1  A scope leaves them as it found them, exceptions included.
// Not here: the guard on them (world.h), and ops that run under them (attention_nodes.h). The kind that extensions
// provide and the order of the kinds are not here either: ops on a CPU do not ask for them.
#pragma once

#include <cstdint>

namespace frametap {

// Their bits in WorldState::backends.
constexpr int kFirstAttentionBit = 2;
constexpr uint16_t kAttentionInBackends = 15u << kFirstAttentionBit;

struct AttentionSwitches {
  bool flash, math, mem_efficient, cudnn;

  static AttentionSwitches Now();
  static AttentionSwitches FromBackends(uint16_t backends);  // of WorldState
  static AttentionSwitches FromNumber(int64_t number);
  int64_t AsNumber() const { return flash << 0 | math << 1 | mem_efficient << 2 | cudnn << 3; }
  void Set() const;
  friend bool operator==(const AttentionSwitches&, const AttentionSwitches&) = default;
};

class AttentionScope {
 public:
  explicit AttentionScope(const AttentionSwitches& inner) : outer_(AttentionSwitches::Now()) { inner.Set(); }
  ~AttentionScope() { outer_.Set(); }
  AttentionScope(const AttentionScope&) = delete;
  AttentionScope& operator=(const AttentionScope&) = delete;

 private:
  const AttentionSwitches outer_;
};

}  // namespace frametap
