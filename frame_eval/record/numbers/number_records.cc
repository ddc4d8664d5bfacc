#include "frame_eval/record/numbers/number_records.h"

namespace frametap {

void NumberRecords::Forget(size_t sources, size_t values_left) {
  const auto is_gone = [&](uint32_t value) { return value >= values_left; };
  const auto is_gone_shadow = [&](Shadow shadow) {
    return shadow.kind == Shadow::Kind::kSource ? shadow.id >= sources
                                                : shadow.kind == Shadow::Kind::kValue && is_gone(shadow.id);
  };
  const auto is_gone_operand = [&](const std::pair<int, int64_t>& operand) {
    return operand.first != static_cast<int>(Shadow::Kind::kNone) &&
           is_gone_shadow({static_cast<Shadow::Kind>(operand.first), static_cast<uint32_t>(operand.second)});
  };
  absl::erase_if(traced_sizes, [&](const auto& one) { return is_gone(one.first.first) || is_gone_shadow(one.second); });
  std::erase_if(ruled_sizes, [&](const auto& one) { return is_gone(one.first); });
  absl::erase_if(int_ops, [&](const auto& one) {
    return is_gone_shadow(one.second) || is_gone_operand(std::get<1>(one.first)) ||
           is_gone_operand(std::get<2>(one.first));
  });
  absl::erase_if(not_negative, [&](ValueId value) { return is_gone(value.raw()); });
  absl::erase_if(inputs, [&](const auto& one) { return is_gone(one.first); });
  absl::erase_if(values, [&](const auto& one) { return one.first >= sources || is_gone(one.second.raw()); });
  absl::erase_if(results, [&](const auto& one) { return is_gone(one.first); });
  sizes_read.clear();
  strides_read.clear();
}

}  // namespace frametap
