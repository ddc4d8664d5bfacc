#include "ir/segment/rows.h"

#include <algorithm>
#include <iterator>

#include "ir/dcheck.h"

namespace frametap {
namespace {

constexpr EffectRow kEffectRows[] = {
#define EFFECT(kind, word, parts, meaning) {Effect::Kind::kind, word, parts, meaning},
#include "ir/segment/effects.def"
#undef EFFECT
};
static_assert(std::all_of(std::begin(kEffectRows), std::end(kEffectRows),
                          [](const EffectRow& row) {
                            return row.parts.find_first_not_of("TNSKVF") == std::string_view::npos;
                          }),
              "a row of effects.def has an unknown part");

constexpr std::string_view kOperandWords[] = {
#define OPERAND(kind, word) word,
#include "ir/segment/operands.def"
#undef OPERAND
};

constexpr std::string_view kExitWords[] = {
#define EXIT(kind, word, meaning) word,
#include "ir/segment/exits.def"
#undef EXIT
};

}  // namespace

size_t EffectRowCount() { return std::size(kEffectRows); }

const EffectRow& RowOf(Effect::Kind kind) {
  FT_DCHECK(static_cast<size_t>(kind) < std::size(kEffectRows));
  return kEffectRows[static_cast<size_t>(kind)];
}

const EffectRow* EffectOf(std::string_view word) {
  for (const EffectRow& row : kEffectRows) {
    if (row.word == word) return &row;
  }
  return nullptr;
}

std::string_view WordOf(Operand::Kind kind) { return kOperandWords[static_cast<size_t>(kind)]; }

std::string_view WordOf(Exit::Kind kind) { return kExitWords[static_cast<size_t>(kind)]; }

}  // namespace frametap
