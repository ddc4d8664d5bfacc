#include "frame_eval/cpython/written_fields.h"

#include <Python.h>

namespace frametap {
namespace {

bool can_hold_signals = true;
bool can_pause_collector = true;

}  // namespace

bool TestWrittenFields() {
  const bool signals = written_fields::HoldsSignals();
  if (PyErr_Occurred() != nullptr) return false;
  const bool collector = written_fields::PausesCollector();
  PyErr_Clear();
  LeaveFieldsAlone(!signals, !collector);
  return true;
}

bool CanHoldSignals() { return can_hold_signals; }
bool CanPauseCollector() { return can_pause_collector; }

void LeaveFieldsAlone(bool signals, bool collector) {
  can_hold_signals = !signals;
  can_pause_collector = !collector;
  written_fields::LeaveSignalsAlone(signals);
  written_fields::LeaveCollectorAlone(collector);
}

}  // namespace frametap
