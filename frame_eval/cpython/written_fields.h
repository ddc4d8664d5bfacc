// Two fields of CPython's runtime that frametap writes to, though they are private to CPython. Each is tested when frametap is
// imported. A field that does not have the effect it should have is left alone from then on, and `explain` says so.
//   W1  The main thread (signals.h). While it is 0, no thread runs handlers of signals or makes pending calls; these are
//       served once it is back. Other threads are not the main one either way. Where this fails, nothing is recorded
//       on the main thread: a handler could raise inside of the recorder, and the exception would be lost.
//   W2  The count of new objects (collector.h), which gc.get_count() gives first. Where this fails, collections run during
//       recordings. That takes time, and changes nothing.
// Not here: what the fields are used for.
#pragma once

namespace frametap {

// Tests both, once, under Python's lock. Returns false with a Python exception, which is the program's (of a handler).
bool TestWrittenFields();
bool CanHoldSignals();
bool CanPauseCollector();
// For tests: as if the tests of these fields had failed, or not.
void LeaveFieldsAlone(bool signals, bool collector);

// Each version of CPython defines these. HoldsSignals may leave a Python exception.
namespace written_fields {
bool HoldsSignals();
bool PausesCollector();
void LeaveSignalsAlone(bool on);
void LeaveCollectorAlone(bool on);
}  // namespace written_fields

}  // namespace frametap
