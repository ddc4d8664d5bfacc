// Compiled against the headers of each version of CPython at hand, and never run (test_versions.py). Its layout fits the
// headers, and its list of opcodes has names that the headers have, each once.
#include FRAMETAP_LAYOUT

#include "opcode.h"

namespace {

constexpr bool IsRow(int opcode) {
  switch (opcode) {
#define MAP(NAME, HANDLER, ARGUMENT) case NAME:
#define PREFIX(NAME, KIND) case NAME:
#define DATA(NAME) case NAME:
#define UNSUPPORTED(NAME, REASON) case NAME:
#define INSTRUMENTED(NAME, PLAIN) case NAME:
#include FRAMETAP_OPCODES
#undef INSTRUMENTED
#undef UNSUPPORTED
#undef DATA
#undef PREFIX
#undef MAP
    return true;
    default:
      return false;
  }
}

#define MAP(NAME, HANDLER, ARGUMENT)
#define PREFIX(NAME, KIND)
#define DATA(NAME)
#define UNSUPPORTED(NAME, REASON)
#define INSTRUMENTED(NAME, PLAIN) static_assert(IsRow(PLAIN), #NAME);
#include FRAMETAP_OPCODES

static_assert(IsRow(CACHE) && !IsRow(255));

}  // namespace
