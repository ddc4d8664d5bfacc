// The rows of effects.def and operands.def: the word of an effect and its parts, and the word of an operand.
#pragma once

#include <string_view>

#include "ir/segment/segment_ir.h"

namespace frametap {

struct EffectRow {
  Effect::Kind kind;
  std::string_view word, parts;
};

constexpr EffectRow kEffectRows[] = {
#define EFFECT(kind, word, parts) {Effect::Kind::kind, word, parts},
#include "ir/segment/effects.def"
#undef EFFECT
};

constexpr const EffectRow& RowOf(Effect::Kind kind) { return kEffectRows[static_cast<size_t>(kind)]; }

// Null if the word is the name of no effect.
constexpr const EffectRow* EffectOf(std::string_view word) {
  for (const EffectRow& row : kEffectRows) {
    if (row.word == word) return &row;
  }
  return nullptr;
}

constexpr std::string_view WordOf(Operand::Kind kind) {
  constexpr std::string_view kWords[] = {
#define OPERAND(kind, word) word,
#include "ir/segment/operands.def"
#undef OPERAND
  };
  return kWords[static_cast<size_t>(kind)];
}

}  // namespace frametap
