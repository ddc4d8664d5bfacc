#include "frame_eval/interpreter/opcodes/names.h"

namespace frametap {

Interned interned;

bool InternNames() {
  bool done = true;
#define FRAMETAP_INTERN(id, text) done = done && (interned.id = PyUnicode_InternFromString(text)) != nullptr;
  FRAMETAP_NAMES(FRAMETAP_INTERN)
#undef FRAMETAP_INTERN
  return done;
}

}  // namespace frametap
