#include "frame_eval/cached_properties.h"

#include "frame_eval/callables/table.h"
#include "frame_eval/known_objects.h"
#include "guards/must.h"

namespace frametap {
namespace {

const PyObject* CodeOfGet() {
  static const PyObject* const code = [] {
    const Ref<> module = Must(PyImport_ImportModule("functools"));
    const Ref<> type = Must(PyObject_GetAttrString(module.get(), "cached_property"));
    const Ref<> get = Must(PyObject_GetAttrString(type.get(), "__get__"));
    return Must(PyObject_GetAttrString(get.get(), "__code__")).Release();
  }();
  return code;
}

}  // namespace

bool IsLockOfOwnProperty(Recorder& r, const FrameState& frame, PyObject* lock) {
  if (reinterpret_cast<PyObject*>(frame.code) != CodeOfGet() || Py_TYPE(lock) != Objects().locks[1]) return false;
  PyObject* const instance = frame.objects[1];  // of __get__(self, instance, owner)
  const Known* const known = instance != nullptr ? r.Find(instance) : nullptr;
  return known != nullptr && known->state == Known::State::kFresh;
}

void LeaveLock(Recorder& r, Call& call) {
  if (call.args.empty() || !IsLockOfOwnProperty(r, call.f, call.args[0])) throw Refusal(call.callable);
}

}  // namespace frametap
