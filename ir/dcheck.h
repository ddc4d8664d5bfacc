// FT_DCHECK: an invariant of ours, which a wrong program of a user cannot break.
//   D1  Where checks are on, an invariant that does not hold ends the process with the file, the line and the condition.
//   D2  Where they are off, the condition is not evaluated: what is left is a test of one byte.
// Checks are on in debug builds, in all C++ tests, and where the environment says FRAMETAP_SELF_CHECK=1, as the Python tests
// do. So tests check the very code that users run. 0 switches them off.
// Not here: errors of users, which have an exception, and limits of ours, which have a reason.
#pragma once

namespace frametap {

namespace checks {
extern bool on;
bool AreWanted();  // whether the environment or the build asks for them
[[noreturn, gnu::cold]] void Fail(const char* file, int line, const char* condition);
}  // namespace checks

inline bool ChecksAreOn() { return checks::on; }

// NOLINTBEGIN(cppcoreguidelines-macro-usage): a function could neither name the condition nor leave it alone.
#define FT_DCHECK(condition)                                    \
  do {                                                          \
    if (::frametap::checks::on && !(condition)) [[unlikely]]    \
      ::frametap::checks::Fail(__FILE__, __LINE__, #condition); \
  } while (false)
// NOLINTEND(cppcoreguidelines-macro-usage)

}  // namespace frametap
