// Stress: faults forced at every n-th place, so that tests can see what rare failures do to a program.
//   Q1  Places are counted from the moment of arming, in the order in which the program comes to them. A fault strikes
//       the same place in every run of the same program.
// Armed by FRAMETAP_STRESS=kind:n in the environment, or by Arm. Kinds:
//   abort:n  a recording is given up at every n-th instruction
//   exit:n   a segment ends with a break at every n-th possible place
//   miss:n   every n-th check of guards that hold says that they do not
//   alloc:n  every n-th allocation by the recorder, or by replay, fails (AllocZone)
//   raise:n  every n-th op raises, whether plain Python, a recording or a replay runs it; a replay counts as many as
//            its recording met, though its graph may have fewer
//   drop:n   the segments of the running function are forgotten at every n-th place where it could use them
// Not here: the places (fault_observer.h).
#pragma once

#include <cstdint>
#include <string>

namespace frametap {

// "" disarms. False if `text` is not understood. With Python's lock.
bool Arm(const std::string& text);
void ArmFromEnvironment();

// How many places of the armed kind have been passed; what is done again is counted once.
uint64_t PlacesPassed();
void SetPlacesPassed(uint64_t count);

}  // namespace frametap
