// The rows of effects.def and operands.def: the word of an effect and its parts, and the word of an operand.
#pragma once

#include <cstddef>
#include <string_view>

#include "ir/segment/segment_ir.h"

namespace frametap {

struct EffectRow {
  Effect::Kind kind;
  std::string_view word, parts;
};

size_t EffectRowCount();
const EffectRow& RowOf(Effect::Kind kind);
const EffectRow* EffectOf(std::string_view word);  // null if no effect has this name

std::string_view WordOf(Operand::Kind kind);

}  // namespace frametap
