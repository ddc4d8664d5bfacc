// Stress: faults forced at every n-th place, so that tests can see what rare failures do to a program.
//   Q1  Nothing is armed in ordinary use: a place then costs one load and one branch that always goes the same way. So
//       no build of its own is needed, and what is tested is what is used.
//   Q2  Places are counted from the moment of arming, in the order in which the program comes to them. A fault strikes
//       the same place in every run of the same program.
//   Q3  A forced fault takes the road of a real one: no code but the place itself knows that it is forced.
// Armed by FRAMETAP_STRESS=kind:n in the environment, or by Arm. Kinds:
//   abort:n  a recording is given up at every n-th instruction
//   exit:n   a segment ends with a break at every n-th possible place
//   miss:n   every n-th check of guards that hold says that they do not
//   alloc:n  every n-th allocation by the recorder, or by replay, fails (AllocZone)
//   raise:n  every n-th op raises, whether plain Python, a recording or a replay runs it; a replay counts as many as
//            its recording met, though its graph may have fewer
//   drop:n   the segments of the running function are forgotten at every n-th place where it could use them
#pragma once

#include <cstdint>
#include <string>

namespace frametap {

enum class Fault : uint8_t { kNone, kAbort, kExit, kMiss, kAlloc, kRaise, kDrop };

namespace stress {

extern Fault armed;
bool CountDown();  // true at every n-th call

}  // namespace stress

inline bool Armed(Fault fault) { return stress::armed == fault; }
inline bool Strikes(Fault fault) { return stress::armed == fault && stress::CountDown(); }

// "" disarms. False if `text` is not understood. With Python's lock.
bool Arm(const std::string& text);
void ArmFromEnvironment();

namespace stress {
void EndRecording(bool breaks_are_errors);
}

// Throws Break if a recording is to end at this place.
inline void MayEndRecording(bool breaks_are_errors) {
  if (stress::armed != Fault::kNone) [[unlikely]]
    stress::EndRecording(breaks_are_errors);
}

// How many places of the armed kind have been passed; what is done again is counted once.
uint64_t PlacesPassed();
uint64_t PlacesToStrike();  // from here, including the count of the strike
void SetPlacesPassed(uint64_t count);

// Allocations of Python objects and buffers by this thread may fail while the innermost scope is an AllocZone. Those of
// Python code that runs meanwhile (a finaliser) do not: it is the program's.
class AllocZone {
 public:
  explicit AllocZone(bool on = true) {
    if (Armed(Fault::kAlloc)) [[unlikely]]
      Enter(on);
  }
  ~AllocZone() {
    if (entered_) [[unlikely]]
      Leave();
  }
  AllocZone(const AllocZone&) = delete;
  AllocZone& operator=(const AllocZone&) = delete;

 private:
  void Enter(bool on);
  void Leave();
  bool entered_ = false;
  const void* previous_ = nullptr;
};

}  // namespace frametap
