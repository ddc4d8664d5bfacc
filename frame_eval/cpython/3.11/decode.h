// CPython 3.11: from a code unit to a handler. Specialised opcodes decode to the handler of the opcode they came from.
#pragma once

#include "frame_eval/interpreter.h"

namespace frametap {

enum class Prefix : uint8_t { kNone, kExtendedArg, kKwNames, kPrecall };

struct Decoded {
  Handler handler = nullptr;
  const char* name = nullptr;
  const char* unsupported = nullptr;  // why CPython has to run it
  uint8_t opcode = 0;                 // without specialisation
  uint8_t caches = 0;                 // code units after the instruction
  Prefix prefix = Prefix::kNone;      // the instruction goes on behind it
};

extern const Decoded* const kDecode;  // by the low byte of a code unit

}  // namespace frametap
