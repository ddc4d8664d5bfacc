// The role of an instruction: the part of its meaning that recorder and session ask for. They do not know opcodes by name.
#pragma once

#include <cstdint>
#include <string_view>

namespace frametap {

enum class InstructionRole : uint8_t {
  kOther,
  kLoadsConstant,
  kStoresLocal,
  kDeletesLocal,
  kPops,
  kComparesIdentity,
  kJumpsOnNone,
  kCallsWithSpread,  // f(*args, **kwargs)
  kTakesElements,    // C code gets an operand with all that is in it
  kBeginsHandler,
  kEndsHandler,
  kRethrows,
  kMatchesClass,  // `except X`
  kMatchesGroup,  // `except* X`
};

// Returns the role of the opcode with that name, in each version of CPython that has it.
InstructionRole RoleOf(std::string_view opcode);

}  // namespace frametap
