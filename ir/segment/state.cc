#include "ir/segment/state.h"

#include <iterator>

#include "ir/graph/type.h"

namespace frametap {
namespace {

enum class Takes : uint8_t { kFlag, kDtype, kDtypeOrOff };

struct StateRow {
  std::string_view word;
  Takes takes;
  std::string_view usual;
};

constexpr StateRow kStateRows[] = {
#define STATE(field, word, takes, usual) {word, Takes::takes, usual},
#define SWITCH(field, word)
#include "ir/segment/state.def"
#undef STATE
#undef SWITCH
};

constexpr std::string_view kSwitchWords[] = {
#define STATE(field, word, takes, usual)
#define SWITCH(field, word) word,
#include "ir/segment/state.def"
#undef STATE
#undef SWITCH
};

const StateRow& RowOf(StateField field) { return kStateRows[static_cast<size_t>(field)]; }

}  // namespace

std::string_view WordOf(StateField field) { return RowOf(field).word; }

std::string_view WordOf(StateSwitch field) { return kSwitchWords[static_cast<size_t>(field)]; }

std::optional<StateSwitch> StateSwitchOf(std::string_view word) {
  for (size_t i = 0; i < std::size(kSwitchWords); ++i) {
    if (kSwitchWords[i] == word) return static_cast<StateSwitch>(i);
  }
  return std::nullopt;
}

bool IsShown(const StateFact& fact) {
  const std::string_view usual = RowOf(fact.field).usual;
  return usual.empty() || (usual != "*" && usual != ValueText(fact));
}

std::string ValueText(const StateFact& fact) {
  if (!fact.on) return "off";
  return RowOf(fact.field).takes == Takes::kFlag ? "on" : DtypeName(fact.dtype);
}

std::string ToString(const StateFact& fact) { return std::string(WordOf(fact.field)) + "(" + ValueText(fact) + ")"; }

std::optional<StateFact> ParseStateFact(std::string_view text) {
  const size_t open = text.find('(');
  if (open == std::string_view::npos || text.back() != ')') return std::nullopt;
  const std::string_view word = text.substr(0, open), value = text.substr(open + 1, text.size() - open - 2);
  for (size_t i = 0; i < std::size(kStateRows); ++i) {
    if (kStateRows[i].word != word) continue;
    const Takes takes = kStateRows[i].takes;
    StateFact fact{static_cast<StateField>(i)};
    if (value == "off" && takes != Takes::kDtype) {
      fact.on = false;
      return fact;
    }
    if (takes == Takes::kFlag) return value == "on" ? std::optional(fact) : std::nullopt;
    const std::optional<c10::ScalarType> dtype = ParseDtype(std::string(value));
    if (!dtype) return std::nullopt;
    fact.dtype = *dtype;
    return fact;
  }
  return std::nullopt;
}

}  // namespace frametap
