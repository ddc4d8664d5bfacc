// FaultObserver: the places at which tests force a fault (stress.h). It is null in production.
//   Q1  A place costs one load and one branch that always goes the same way. So no build of its own is needed, and what is
//       tested is what is used.
//   Q2  A place reports to the observer that the program is there, and asks it nothing else. No path depends on whether
//       there is an observer. A forced fault takes the path of a real one.
// Not here: which fault is forced, and when. stress.cc alone knows.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>

namespace frametap {

class SegmentCache;
struct Segment;

class FaultObserver {
 public:
  FaultObserver() = default;
  virtual ~FaultObserver() = default;
  FaultObserver(const FaultObserver&) = delete;
  FaultObserver& operator=(const FaultObserver&) = delete;

  // An op is about to run, outermost of those that the program calls or below another. May throw: the op raises.
  virtual void BeforeOp(const c10::OperatorHandle& /*op*/, bool /*is_of_program*/) {}
  // A recording may end here. May throw Break.
  virtual void MayEndRecording(bool /*breaks_are_errors*/) {}
  // Guards hold. Returns whether they are said not to.
  virtual bool MakesMiss() { return false; }
  // The segments of the running function are about to be looked up.
  virtual void BeforeLookUp(SegmentCache& /*store*/) {}
  // Until the matching call of LeaveAllocations, allocations of this thread's running frame may fail, or must not.
  // Returns the state of before.
  virtual const void* EnterAllocations(bool /*may_fail*/) { return nullptr; }
  virtual void LeaveAllocations(const void* /*before*/) {}

  // Ops of the program that are made together, and may be taken back together. They end where this object does.
  class Ops {
   public:
    Ops() = default;
    virtual ~Ops() = default;
    Ops(const Ops&) = delete;
    Ops& operator=(const Ops&) = delete;

    virtual void Done() {}  // may throw
    virtual void TakenBack() {}
  };
  // A run of the segment's graph. Its ops stand for those that the recording met.
  virtual std::unique_ptr<Ops> BeginRun(Segment& /*segment*/) { return nullptr; }
  // Ops of the program that are made in place of interpreted ones, which follow if they are taken back.
  virtual std::unique_ptr<Ops> BeginAttempt() { return nullptr; }
};

inline constinit FaultObserver* fault_observer = nullptr;  // lives for ever

// Allocations of Python objects and buffers by this thread may fail while the innermost scope is an AllocZone. Those of
// Python code that runs meanwhile (a finaliser) do not: it is the program's.
class AllocZone {
 public:
  explicit AllocZone(bool on = true) : observer_(fault_observer) {
    if (observer_ != nullptr) [[unlikely]]
      before_ = observer_->EnterAllocations(on);
  }
  ~AllocZone() {
    if (observer_ != nullptr) [[unlikely]]
      observer_->LeaveAllocations(before_);
  }
  AllocZone(const AllocZone&) = delete;
  AllocZone& operator=(const AllocZone&) = delete;

 private:
  FaultObserver* const observer_;
  const void* before_ = nullptr;
};

}  // namespace frametap
