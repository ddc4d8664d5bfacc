// StateFact: one field of the thread's state and its value, as a segment guards it. state.def has the rows.
// StateSwitch: a field of it that the effect `state` sets.
// Not here: how the thread's state is read (guards/kinds/world.h) and set (frame_eval/replay/commit.cc).
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace frametap {

enum class StateField : uint8_t {
#define STATE(field, word, takes, usual) field,
#define SWITCH(field, word)
#include "ir/segment/state.def"
#undef STATE
#undef SWITCH
};

enum class StateSwitch : uint8_t {
#define STATE(field, word, takes, usual)
#define SWITCH(field, word) field,
#include "ir/segment/state.def"
#undef STATE
#undef SWITCH
};

struct StateFact {
  StateField field = StateField::kGradMode;
  bool on = true;  // true for every dtype
  c10::ScalarType dtype = c10::ScalarType::Undefined;

  friend bool operator==(const StateFact&, const StateFact&) = default;
};

std::string_view WordOf(StateField field);
std::string_view WordOf(StateSwitch field);
std::optional<StateSwitch> StateSwitchOf(std::string_view word);
bool IsShown(const StateFact& fact);
std::string ValueText(const StateFact& fact);  // "on", "off", "bf16"
std::string ToString(const StateFact& fact);   // "grad_mode(on)"
// Returns the fact with this text, or nothing if no field has the name or the field does not take the value.
std::optional<StateFact> ParseStateFact(std::string_view text);

}  // namespace frametap
