// The only file beside opcode_tables.c that sees opcode.h: its macros are named CALL, COPY, SEND, CACHE …
#include "frame_eval/cpython/3.11/decode.h"

#include "frame_eval/cpython/truth_test.h"
#include "opcode.h"

extern "C" const uint8_t frametap_opcode_caches[256];
extern "C" const uint8_t frametap_opcode_deopt[256];

namespace frametap {

namespace opcodes {
#define PREFIX(NAME, KIND)
#define DATA(NAME)
#define UNSUPPORTED(NAME, REASON)
#define MAP(NAME, HANDLER, ARGUMENT) Step HANDLER(Execution& m, int arg);
#include "frame_eval/cpython/3.11/opcodes.def"
#undef MAP
#undef UNSUPPORTED
#undef DATA
#undef PREFIX
}  // namespace opcodes

namespace {

Step HandOver(Execution&, int) { return Step::kHandOver; }

struct Table {
  Decoded rows[256];
  const char* names[256];

  Table() {
    for (int opcode = 0; opcode < 256; ++opcode) Set(opcode, HandOver, "unknown");
#define PREFIX(NAME, KIND) Set(NAME, HandOver, #NAME, Prefix::KIND);
#define DATA(NAME) Set(NAME, HandOver, #NAME);
#define UNSUPPORTED(NAME, REASON) Set(NAME, HandOver, #NAME);
#define MAP(NAME, HANDLER, ARGUMENT) \
  Set(                               \
      NAME, [](Execution& m, [[maybe_unused]] int arg) -> Step { return opcodes::HANDLER(m, ARGUMENT); }, #NAME);
#include "frame_eval/cpython/3.11/opcodes.def"
#undef MAP
#undef UNSUPPORTED
#undef DATA
#undef PREFIX
    // A specialised opcode has the row of the one it came from. Unused numbers map to 0 there.
    for (int opcode = 1; opcode < 256; ++opcode) {
      int plain = frametap_opcode_deopt[opcode];
      if (plain != 0 && plain != opcode) rows[opcode] = rows[plain];
    }
  }

  void Set(int opcode, Handler handler, const char* name, Prefix prefix = Prefix::kNone) {
    rows[opcode] = {handler, frametap_opcode_caches[opcode], prefix, static_cast<uint8_t>(opcode)};
    names[opcode] = name;
  }
};

const Table kTable;

}  // namespace

const Decoded* const kDecode = kTable.rows;

int StoreTarget(const uint16_t* unit) { return kTable.rows[*unit & 0xff].opcode == STORE_FAST ? *unit >> 8 : -1; }

std::optional<TruthTest> TruthTestAt(PyCodeObject* code, int offset) {
  const auto* const units = reinterpret_cast<const uint16_t*>(code->co_code_adaptive);
  int index = offset / 2, arg = 0;
  if (offset < 0 || index >= Py_SIZE(code)) return std::nullopt;
  for (; kDecode[units[index] & 0xff].opcode == EXTENDED_ARG; ++index) arg = (arg | units[index] >> 8) << 8;
  const Decoded& row = kDecode[units[index] & 0xff];
  arg |= units[index] >> 8;
  const int next = index + 1 + row.caches, forward = 2 * (next + arg), back = 2 * (next - arg), after = 2 * next;
  switch (row.opcode) {
    case POP_JUMP_FORWARD_IF_TRUE:
      return TruthTest{forward, after};
    case POP_JUMP_FORWARD_IF_FALSE:
      return TruthTest{after, forward};
    case POP_JUMP_BACKWARD_IF_TRUE:
      return TruthTest{back, after};
    case POP_JUMP_BACKWARD_IF_FALSE:
      return TruthTest{after, back};
    case JUMP_IF_TRUE_OR_POP:
      return TruthTest{forward, after, true};
    case JUMP_IF_FALSE_OR_POP:
      return TruthTest{after, forward, false, true};
    case UNARY_NOT:
      return TruthTest{after, after, false, false, true};
    default:
      return std::nullopt;
  }
}

const char* NameOf(const Decoded& decoded) { return kTable.names[decoded.opcode]; }

}  // namespace frametap
