#include "ir/dcheck.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace frametap {

bool checks::on = checks::AreWanted();

bool checks::AreWanted() {
  if (const char* text = std::getenv("FRAMETAP_SELF_CHECK")) return std::strcmp(text, "0") != 0;
#ifdef FRAMETAP_SELF_CHECK
  return true;
#else
  return false;
#endif
}

void checks::Fail(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "frametap: the invariant `%s` does not hold (%s:%d)\n", condition, file, line);
  std::fflush(stderr);
  std::abort();
}

}  // namespace frametap
