#include "frame_eval/cpython/collector.h"

#include "frame_eval/cpython/3.11/raw_frame.h"
#include "frame_eval/cpython/written_fields.h"

namespace frametap {
namespace {

// Far below any threshold. An allocation adds one; a collection that the program asks for sets the count to 0.
constexpr int kFarBack = -(1 << 30);

// Recordings that live, on any thread. Under Python's lock.
int pauses = 0;

bool is_left_alone = false;

int& Count() { return Layout311::CollectorCount(); }

// Whether gc.get_count() gives the count.
bool IsTold(PyObject* gc) {
  const int count = Count();
  PyObject* const counts = PyObject_CallMethod(gc, "get_count", nullptr);
  const bool is_told = counts != nullptr && PyTuple_CheckExact(counts) && PyTuple_GET_SIZE(counts) > 0 &&
                       PyLong_AsLong(PyTuple_GET_ITEM(counts, 0)) == count;
  Py_XDECREF(counts);
  return is_told;
}

}  // namespace

bool written_fields::PausesCollector() {
  PyObject* const gc = PyImport_ImportModule("gc");
  if (gc == nullptr || !IsTold(gc)) {
    Py_XDECREF(gc);
    return false;
  }
  Count() += kFarBack;
  const bool is_told = IsTold(gc);
  Count() -= kFarBack;
  Py_DECREF(gc);
  return is_told;
}

void written_fields::LeaveCollectorAlone(bool on) { is_left_alone = on; }

CollectorPause::CollectorPause() {
  ++pauses;
  if (!is_left_alone && Count() >= 0) Count() += kFarBack;
}

CollectorPause::~CollectorPause() {
  if (--pauses == 0 && Count() < 0) Count() -= kFarBack;
}

}  // namespace frametap
