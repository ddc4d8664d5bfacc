#include "frame_eval/checks/stress.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <Python.h>

#include <atomic>
#include <cstdlib>
#include <utility>

#include "frame_eval/checks/fault_observer.h"
#include "frame_eval/cpython/eval_function.h"
#include "frame_eval/segment/reasons.h"
#include "frame_eval/segment/segment.h"
#include "frame_eval/state/aten_pause.h"

namespace frametap {
namespace {

std::atomic<uint64_t> passed = 0;
uint64_t period = 1;

bool Strikes() { return (passed.fetch_add(1, std::memory_order_relaxed) + 1) % period == 0; }

class Aborts final : public FaultObserver {
  void MayEndRecording(bool /*breaks_are_errors*/) override {
    if (Strikes()) throw Break{Reason::internal_error, "forced"};
  }
};

class Exits final : public FaultObserver {
  void MayEndRecording(bool breaks_are_errors) override {
    if (!breaks_are_errors && Strikes()) throw Break{Reason::unknown_operation, "forced"};
  }
};

class Misses final : public FaultObserver {
  bool MakesMiss() override { return Strikes(); }
};

class Drops final : public FaultObserver {
  void BeforeLookUp(SegmentCache& store) override {
    if (Strikes()) store.Reset();
  }
};

// ---- raise ----------------------------------------------------------------------------------------------------------

class RaisingRun;
thread_local constinit RaisingRun* running = nullptr;

class RaisingRun final : public FaultObserver::Ops {
 public:
  explicit RaisingRun(Segment& segment)
      : before_(passed),
        ops_(segment.ops_met),
        depth_(aten::depth),
        is_outermost_(running == nullptr),
        strikes_(is_outermost_ && period - before_ % period <= ops_) {
    if (is_outermost_) running = this;
    // A run relies on it that ops do not raise for sizes that ran before. So a forced error has sizes that did not.
    if (strikes_) segment.sizes_that_ran.clear();
  }
  ~RaisingRun() override { End(); }

  // A graph has fewer ops than its recording met, and others, so they count only where one is to raise.
  bool Counts() const { return strikes_ && aten::depth == depth_; }
  void Done() override {
    if (!is_outermost_) return;
    End();
    TORCH_CHECK(!strikes_, "forced at an op that is not in the graph");
    passed = before_ + ops_;
  }
  void TakenBack() override {
    if (!is_outermost_) return;
    End();
    passed = before_;
  }

 private:
  void End() {
    if (running == this) running = nullptr;
  }

  const uint64_t before_, ops_;
  const int depth_;
  const bool is_outermost_, strikes_;
};

class Attempt final : public FaultObserver::Ops {
 public:
  void TakenBack() override { passed = before_; }

 private:
  const uint64_t before_ = passed;
};

class Raises final : public FaultObserver {
  void BeforeOp(const c10::OperatorHandle& op, bool is_of_program) override {
    // The setter of x.data asks this, at the end of a replay.
    static const c10::OperatorHandle asks_kinds =
        c10::Dispatcher::singleton().findSchemaOrThrow("aten::_has_compatible_shallow_copy_type", "");
    if (op == asks_kinds) return;
    const bool counts = running != nullptr ? running->Counts() : is_of_program;
    TORCH_CHECK(!counts || !Strikes(), "forced at ", op.operator_name());
  }
  std::unique_ptr<Ops> BeginRun(Segment& segment) override { return std::make_unique<RaisingRun>(segment); }
  std::unique_ptr<Ops> BeginAttempt() override { return std::make_unique<Attempt>(); }
};

// ---- alloc ----------------------------------------------------------------------------------------------------------

thread_local const void* zone_frame = nullptr;  // the frame in which the AllocZone is; null: there is none

class FailedAllocations final : public FaultObserver {
  const void* EnterAllocations(bool may_fail) override {
    return std::exchange(zone_frame, may_fail ? RunningFrame(PyThreadState_Get()) : nullptr);
  }
  void LeaveAllocations(const void* before) override { zone_frame = before; }
};

// Python's own allocators with a door that may be shut. The raw domain is left alone: it is used without the lock.
struct Door {
  PyMemAllocatorEx below;
  static bool Shut() {
    return zone_frame != nullptr && zone_frame == RunningFrame(PyThreadState_Get()) && fault_observer != nullptr &&
           Strikes();
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

// ---- kinds ----------------------------------------------------------------------------------------------------------

Aborts aborts;
Exits exits;
Misses misses;
Drops drops;
Raises raises;
FailedAllocations failed_allocations;
const std::pair<const char*, FaultObserver*> kKinds[] = {{"abort", &aborts}, {"exit", &exits},
                                                         {"miss", &misses},  {"alloc", &failed_allocations},
                                                         {"raise", &raises}, {"drop", &drops}};

}  // namespace

bool Arm(const std::string& text) {
  const size_t colon = text.find(':');
  FaultObserver* observer = nullptr;
  for (const auto& [name, kind] : kKinds) {
    if (text.substr(0, colon) == name) observer = kind;
  }
  uint64_t n = 1;
  if (colon != std::string::npos) {
    char* end = nullptr;
    n = std::strtoull(text.c_str() + colon + 1, &end, 10);
    if (end == text.c_str() + colon + 1 || *end != '\0') return false;
  }
  if ((observer == nullptr) != text.empty() || n == 0) return false;
  period = n;
  passed = 0;
  if (observer == &failed_allocations) InstallDoors();
  fault_observer = observer;
  aten::SeeEveryOp(observer == &raises);
  return true;
}

void ArmFromEnvironment() {
  const char* text = std::getenv("FRAMETAP_STRESS");
  if (text != nullptr && !Arm(text)) PySys_WriteStderr("frametap: FRAMETAP_STRESS=%s is not understood\n", text);
}

uint64_t PlacesPassed() { return passed; }
void SetPlacesPassed(uint64_t count) { passed = count; }

}  // namespace frametap
