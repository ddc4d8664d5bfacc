#include "frame_eval/cpython/collector.h"

#include "frame_eval/cpython/3.11/raw_frame.h"

namespace frametap {
namespace {

// Far below any threshold. An allocation adds one; a collection that the program asks for sets the count to 0.
constexpr int kFarBack = -(1 << 30);

// Recordings that live, on any thread. Under Python's lock.
int pauses = 0;

int& Count() { return PyInterpreterState_Get()->gc.generations[0].count; }

}  // namespace

CollectorPause::CollectorPause() {
  ++pauses;
  if (Count() >= 0) Count() += kFarBack;
}

CollectorPause::~CollectorPause() {
  if (--pauses == 0 && Count() < 0) Count() -= kFarBack;
}

}  // namespace frametap
