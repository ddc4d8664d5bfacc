// The rows of effects.def, operands.def and exits.def: words, the parts of an effect, and what each of them means.
#pragma once

#include <cstddef>
#include <string_view>

#include "ir/segment/segment_ir.h"

namespace frametap {

struct EffectRow {
  Effect::Kind kind;
  std::string_view word, parts, meaning;
};

size_t EffectRowCount();
const EffectRow& RowOf(Effect::Kind kind);
const EffectRow* EffectOf(std::string_view word);  // null if no effect has this name

std::string_view WordOf(Operand::Kind kind);
std::string_view WordOf(Exit::Kind kind);

}  // namespace frametap
