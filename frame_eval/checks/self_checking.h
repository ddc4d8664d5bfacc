// Whether the self-check is on (session/self_check.h says what it compares).
#pragma once

namespace frametap {

namespace self_check {
extern bool on;
}
inline bool SelfChecking() { return self_check::on; }
inline void SetSelfChecking(bool on) { self_check::on = on; }

}  // namespace frametap
