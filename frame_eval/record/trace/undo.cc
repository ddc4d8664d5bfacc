#include "frame_eval/record/trace/undo.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include "frame_eval/cpython/private_api.h"
#include "frame_eval/record/objects/quiet.h"
#include "frame_eval/state/aten_pause.h"
#include "guards/throw_if_null.h"

namespace frametap {
namespace {

// A descriptor in C (a slot, `grad` of a tensor, `__name__` of a function) stores the attribute elsewhere than in a
// dict. (The setter of a property is a frame whose own stores are recorded.)
bool IsStoredByC(PyObject* target, PyObject* name) {
  PyObject* descriptor = _PyType_Lookup(Py_TYPE(target), name);
  return descriptor != nullptr &&
         (Py_TYPE(descriptor) == &PyMemberDescr_Type || Py_TYPE(descriptor) == &PyGetSetDescr_Type);
}

Ref<> AttributeNow(PyObject* target, PyObject* name) {
  if (IsStoredByC(target, name)) return Ref<>::Steal(PyObject_GenericGetAttr(target, name));
  PyObject* const dict = InstanceDict(target);
  return Ref<>::New(dict != nullptr ? ItemQuietly(dict, name) : nullptr);
}

Ref<> OfOrderedDict(PyObject* dict, const char* method) {
  return Ref<>::Steal(PyObject_CallMethod(reinterpret_cast<PyObject*>(&PyODict_Type), method, "O", dict));
}

// A list of pairs for an OrderedDict, whose order differs from the order of its dict.
Ref<> CopyOf(PyObject* container) {
  if (PyList_Check(container)) return Must(PyList_GetSlice(container, 0, PyList_GET_SIZE(container)));
  if (PyODict_Check(container)) return Must(PySequence_List(Must(OfOrderedDict(container, "items").Release()).get()));
  if (PyDict_Check(container)) return Must(PyDict_Copy(container));
  if (PyAnySet_Check(container)) return Must(PySet_New(container));
  if (PySequence_Check(container)) return Must(PySequence_List(container));  // a deque
  return Ref<>();
}

void PutBack(PyObject* container, PyObject* copy) {
  if (PyList_Check(container)) {
    PyList_SetSlice(container, 0, PyList_GET_SIZE(container), copy);
  } else if (PyODict_Check(container)) {
    OfOrderedDict(container, "clear");
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(copy); ++i) {
      PyObject* pair = PyList_GET_ITEM(copy, i);
      PyODict_SetItem(container, PyTuple_GET_ITEM(pair, 0), PyTuple_GET_ITEM(pair, 1));
    }
  } else if (PyDict_Check(container)) {
    PyDict_Clear(container);
    PyDict_Update(container, copy);
  } else if (PyAnySet_Check(container)) {
    PySet_Clear(container);
    _PySet_Update(container, copy);
  } else {
    Ref<>::Steal(PyObject_CallMethod(container, "clear", nullptr));
    Ref<>::Steal(PyObject_CallMethod(container, "extend", "O", copy));
  }
}

}  // namespace

void UndoLog::Before(Effect::Kind kind, PyObject* target, const std::string& name) {
  Step step{kind, Ref<>::New(target), name, Ref<>(), std::nullopt};
  switch (kind) {
    case Effect::Kind::kSetAttr:
    case Effect::Kind::kDelAttr:
      step.old = AttributeNow(target, Must(PyUnicode_InternFromString(name.c_str())).get());
      break;
    case Effect::Kind::kSetGlobal: {
      const Ref<> key = Must(PyUnicode_InternFromString(name.c_str()));
      step.old = Ref<>::New(ItemQuietly(target, key.get()));
      break;
    }
    case Effect::Kind::kSetCell:
      step.old = Ref<>::New(PyCell_GET(target));
      break;
    case Effect::Kind::kAdvance:
      step.place.emplace(target);
      break;
    default:
      if (!copied_.insert(target).second) return;
      step.old = CopyOf(target);
  }
  PyErr_Clear();
  steps_.push_back(std::move(step));
}

void UndoLog::Before(const at::Tensor& written) {
  if (!copied_.insert(written.unsafeGetTensorImpl()).second) return;
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

void UndoLog::TakeBack(Step& step) {
  PyObject* target = step.target.get();
  PyObject* old = step.old.get();
  switch (step.kind) {
    case Effect::Kind::kSetAttr:
    case Effect::Kind::kDelAttr:
      PyObject_GenericSetAttr(target, Ref<>::Steal(PyUnicode_InternFromString(step.name.c_str())).get(), old);
      break;
    case Effect::Kind::kSetGlobal:
      if (old != nullptr) {
        PyDict_SetItemString(target, step.name.c_str(), old);
      } else {
        PyDict_DelItemString(target, step.name.c_str());
      }
      break;
    case Effect::Kind::kSetCell:
      PyCell_Set(target, old);
      break;
    case Effect::Kind::kAdvance:
      step.place->PutBack();
      break;
    default:
      if (old != nullptr) PutBack(target, old);
  }
  PyErr_Clear();
}

void UndoLog::TakeBack() {
  ErrScope keep;
  AtenPause pause;
  for (auto it = steps_.rbegin(); it != steps_.rend(); ++it) TakeBack(*it);
  {
    at::AutoDispatchBelowADInplaceOrView below;
    for (auto it = tensors_.rbegin(); it != tensors_.rend(); ++it) it->RestoreElements();
    for (auto it = tensors_.rbegin(); it != tensors_.rend(); ++it) it->RestoreHistory();
  }
  thread_.PutBack(autocast_nesting_);
}

}  // namespace frametap
