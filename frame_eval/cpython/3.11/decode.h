// CPython 3.11: from a code unit to a handler. Specialised opcodes decode to the handler of the opcode they came from.
#pragma once

#include "frame_eval/interpreter/interpreter.h"

namespace frametap {

enum class Prefix : uint8_t { kNone, kExtendedArg, kKwNames, kPrecall };

struct Decoded {
  Handler handler = nullptr;
  uint8_t caches = 0;             // code units after the instruction
  Prefix prefix = Prefix::kNone;  // the next instruction begins after it
  uint8_t opcode = 0;             // without specialisation
};

extern const Decoded* const kDecode;  // by the low byte of a code unit

// The index of the code unit that acts after the prefixes that begin at `index`.
inline int Acting(const uint16_t* units, int index) {
  for (const Decoded* row; (row = &kDecode[units[index] & 0xff])->prefix != Prefix::kNone;) index += 1 + row->caches;
  return index;
}

int StoreTarget(const uint16_t* unit);  // the local that a STORE_FAST without prefix stores into, or -1

const char* NameOf(const Decoded& decoded);

}  // namespace frametap
