#include "frame_eval/record/objects/cached_properties.h"

#include "frame_eval/record/callables/table.h"
#include "guards/objects/well_known_objects.h"

namespace frametap {
const void* CodeOfCachedProperty() {
  static const void* const code = []() -> const void* {
    const ErrScope keep;
    const Ref<> type = OwnerOf("functools", "cached_property");
    const Ref<> get = type ? Ref<>::Steal(PyObject_GetAttrString(type.get(), "__get__")) : Ref<>();
    PyErr_Clear();
    return get && PyFunction_Check(get.get()) ? PyFunction_GET_CODE(get.get()) : nullptr;
  }();
  return code;
}

bool IsLockOfOwnProperty(Trace& trace, const FrameState& frame, PyObject* lock) {
  if (frame.code != CodeOfCachedProperty() || Py_TYPE(lock) != Objects().locks[1]) return false;
  PyObject* const instance = frame.objects[1];  // of __get__(self, instance, owner)
  const ObjectRecord* const known = instance != nullptr ? trace.objects.Find(instance) : nullptr;
  return known != nullptr && known->state == ObjectRecord::State::kFresh;
}

void LeaveLock(Trace& trace, Call& call) {
  if (call.args.empty() || !IsLockOfOwnProperty(trace, call.f, call.args[0])) throw Refusal(call.callable);
}

}  // namespace frametap
