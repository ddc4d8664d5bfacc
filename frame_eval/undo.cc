#include "frame_eval/undo.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include "frame_eval/aten_recorder.h"
#include "frame_eval/random_state.h"
#include "guards/must.h"

namespace frametap {

UndoLog::UndoLog() {
  AtenPause pause;
  random_state_ = RandomState();
}

void UndoLog::Before(Effect::Kind kind, PyObject* target, const std::string& name) {
  Step step{kind, Ref<>::New(target), name, Ref<>(), std::nullopt};
  switch (kind) {
    case Effect::Kind::kSetAttr:
    case Effect::Kind::kDelAttr: {
      const Ref<> key = Must(PyUnicode_InternFromString(name.c_str()));
      PyObject** dict = _PyObject_GetDictPtr(target);
      step.old = Ref<>::New(dict && *dict ? PyDict_GetItemWithError(*dict, key.get()) : nullptr);
      break;
    }
    case Effect::Kind::kSetGlobal: {
      const Ref<> key = Must(PyUnicode_InternFromString(name.c_str()));
      step.old = Ref<>::New(PyDict_GetItemWithError(target, key.get()));
      break;
    }
    case Effect::Kind::kSetCell:
      step.old = Ref<>::New(PyCell_GET(target));
      break;
    case Effect::Kind::kAdvance:
      step.place.emplace(target);
      break;
    default:
      if (PyList_Check(target)) step.old = Must(PyList_GetSlice(target, 0, PyList_GET_SIZE(target)));
      if (PyDict_Check(target)) step.old = Must(PyDict_Copy(target));
      if (PySet_Check(target)) step.old = Must(PySet_New(target));
  }
  PyErr_Clear();
  steps_.push_back(std::move(step));
}

void UndoLog::Before(const at::Tensor& written) {
  at::AutoDispatchBelowADInplaceOrView below;
  tensors_.emplace_back(written);
}

Py_ssize_t UndoLog::CountOf(PyObject* object) const {
  Py_ssize_t count = 0;
  for (const Step& step : steps_) count += (step.target.get() == object) + (step.old.get() == object);
  return count;
}

bool UndoLog::IsComplete() const {
  for (const Step& step : steps_) {
    PyObject* target = step.target.get();
    switch (step.kind) {
      case Effect::Kind::kSetAttr:
      case Effect::Kind::kDelAttr:
        if (_PyObject_GetDictPtr(target) == nullptr) return false;
        break;
      case Effect::Kind::kSetGlobal:
      case Effect::Kind::kSetCell:
      case Effect::Kind::kAdvance:
        break;
      default:
        if (!PyList_Check(target) && !PyDict_Check(target) && !PySet_Check(target)) return false;
    }
  }
  return true;
}

void UndoLog::TakeBack() {
  ErrScope keep;
  AtenPause pause;
  for (auto it = steps_.rbegin(); it != steps_.rend(); ++it) {
    PyObject* target = it->target.get();
    PyObject* old = it->old.get();
    switch (it->kind) {
      case Effect::Kind::kSetAttr:
      case Effect::Kind::kDelAttr: {
        Ref<> key = Ref<>::Steal(PyUnicode_InternFromString(it->name.c_str()));
        PyObject_GenericSetAttr(target, key.get(), old);
        break;
      }
      case Effect::Kind::kSetGlobal:
        if (old != nullptr)
          PyDict_SetItemString(target, it->name.c_str(), old);
        else
          PyDict_DelItemString(target, it->name.c_str());
        break;
      case Effect::Kind::kSetCell:
        PyCell_Set(target, old);
        break;
      case Effect::Kind::kAdvance:
        it->place->PutBack();
        break;
      default:
        if (old == nullptr) break;
        if (PyList_Check(target)) PyList_SetSlice(target, 0, PyList_GET_SIZE(target), old);
        if (PyDict_Check(target)) {
          PyDict_Clear(target);
          PyDict_Update(target, old);
        }
        if (PySet_Check(target)) {
          PySet_Clear(target);
          _PySet_Update(target, old);
        }
    }
    PyErr_Clear();
  }
  {
    at::AutoDispatchBelowADInplaceOrView below;
    for (auto it = tensors_.rbegin(); it != tensors_.rend(); ++it) it->RestoreElements();
    for (auto it = tensors_.rbegin(); it != tensors_.rend(); ++it) it->RestoreHistory();
  }
  SetRandomState(random_state_);
}

}  // namespace frametap
