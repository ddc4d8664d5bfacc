#include "frame_eval/checks/stress.h"

#include <Python.h>

#include <atomic>
#include <cstdlib>
#include <utility>

#include "frame_eval/cpython/eval_function.h"
#include "frame_eval/segment/reasons.h"
#include "frame_eval/state/aten_pause.h"

namespace frametap {
namespace {

std::atomic<uint64_t> passed = 0;
uint64_t period = 0;
thread_local const void* zone_frame = nullptr;  // the frame in which the AllocZone is; null: there is none

constexpr std::pair<const char*, Fault> kKinds[] = {{"abort", Fault::kAbort}, {"exit", Fault::kExit},
                                                    {"miss", Fault::kMiss},   {"alloc", Fault::kAlloc},
                                                    {"raise", Fault::kRaise}, {"drop", Fault::kDrop}};

// Python's own allocators with a door that may be shut. The raw domain is left alone: it is used without the lock.
struct Door {
  PyMemAllocatorEx below;
  static bool Shut() {
    return zone_frame != nullptr && zone_frame == RunningFrame(PyThreadState_Get()) && Strikes(Fault::kAlloc);
  }
  static Door* Of(void* door) { return static_cast<Door*>(door); }
  static void* Malloc(void* door, size_t size) {
    return Shut() ? nullptr : Of(door)->below.malloc(Of(door)->below.ctx, size);
  }
  static void* Calloc(void* door, size_t count, size_t size) {
    return Shut() ? nullptr : Of(door)->below.calloc(Of(door)->below.ctx, count, size);
  }
  static void* Realloc(void* door, void* block, size_t size) {
    return Shut() ? nullptr : Of(door)->below.realloc(Of(door)->below.ctx, block, size);
  }
  static void Free(void* door, void* block) { Of(door)->below.free(Of(door)->below.ctx, block); }
};

// Once and for good: what has been allocated through the doors goes back through them.
void InstallDoors() {
  static Door doors[2];
  static const bool installed = [] {
    const PyMemAllocatorDomain domains[] = {PYMEM_DOMAIN_MEM, PYMEM_DOMAIN_OBJ};
    for (int i = 0; i < 2; ++i) {
      PyMem_GetAllocator(domains[i], &doors[i].below);
      PyMemAllocatorEx door = {&doors[i], Door::Malloc, Door::Calloc, Door::Realloc, Door::Free};
      PyMem_SetAllocator(domains[i], &door);
    }
    return true;
  }();
  (void)installed;
}

}  // namespace

namespace stress {

Fault armed = Fault::kNone;

bool CountDown() { return (passed.fetch_add(1, std::memory_order_relaxed) + 1) % period == 0; }

void EndRecording(bool breaks_are_errors) {
  if (Strikes(Fault::kAbort)) throw Break{Reason::internal_error, "forced"};
  if (!breaks_are_errors && Strikes(Fault::kExit)) throw Break{Reason::unknown_operation, "forced"};
}

}  // namespace stress

bool Arm(const std::string& text) {
  const size_t colon = text.find(':');
  Fault fault = Fault::kNone;
  for (const auto& [name, kind] : kKinds) {
    if (text.substr(0, colon) == name) fault = kind;
  }
  uint64_t n = 1;
  if (colon != std::string::npos) {
    char* end = nullptr;
    n = std::strtoull(text.c_str() + colon + 1, &end, 10);
    if (end == text.c_str() + colon + 1 || *end != '\0') return false;
  }
  if ((fault == Fault::kNone) != text.empty() || n == 0) return false;
  period = n;
  passed = 0;
  if (fault == Fault::kAlloc) InstallDoors();
  stress::armed = fault;
  aten::SeeEveryOp(fault == Fault::kRaise);
  return true;
}

void ArmFromEnvironment() {
  const char* text = std::getenv("FRAMETAP_STRESS");
  if (text != nullptr && !Arm(text)) PySys_WriteStderr("frametap: FRAMETAP_STRESS=%s is not understood\n", text);
}

uint64_t PlacesPassed() { return passed; }
uint64_t PlacesToStrike() { return period - passed % period; }
void SetPlacesPassed(uint64_t count) { passed = count; }

void AllocZone::Enter(bool on) {
  entered_ = true;
  previous_ = std::exchange(zone_frame, on ? RunningFrame(PyThreadState_Get()) : nullptr);
}
void AllocZone::Leave() { zone_frame = previous_; }

}  // namespace frametap
