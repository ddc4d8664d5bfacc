#include "ir/leaks.h"

#include <cstdio>
#include <string>

namespace frametap {
namespace {

const AliveCount* first = nullptr;  // constant-initialised: counts register before any dynamic initialiser of this file

}  // namespace

AliveCount::AliveCount(const char* what) : what_(what), next_(first) { first = this; }

void ReportLeaks() {
  std::string left;
  for (const AliveCount* one = first; one != nullptr; one = one->next()) {
    if (one->count() != 0) left += (left.empty() ? "" : ", ") + std::to_string(one->count()) + " " + one->what();
  }
  if (!left.empty()) std::fprintf(stderr, "frametap: left at exit, %s\n", left.c_str());
}

}  // namespace frametap
