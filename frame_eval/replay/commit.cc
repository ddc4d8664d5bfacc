#include "frame_eval/replay/commit.h"

#include <ATen/core/grad_mode.h>

#include <iterator>
#include <utility>

#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/segment/cached_functions.h"
#include "frame_eval/segment/new_objects.h"
#include "guards/objects/dict_write.h"
#include "guards/ref.h"
#include "ir/autocast.h"
#include "ir/dcheck.h"

namespace frametap {
namespace {

using CommitOne = bool (*)(const EffectStep&);

constexpr CommitOne kCommits[] = {
#define EFFECT(kind, word, parts, meaning) &CommitEffect<Effect::Kind::kind>,
#include "ir/segment/effects.def"
#undef EFFECT
};

}  // namespace

bool CommitByKind(const EffectStep& step) {
  const auto kind = static_cast<size_t>(step.effect.kind);
  FT_DCHECK(kind < std::size(kCommits));
  return kCommits[kind](step);
}

bool Advance(PyObject* iterator, PyObject* times) {
  for (long n = PyLong_AsLong(times); n > 0; --n) {
    const Ref<> item = Ref<>::Steal(Py_TYPE(iterator)->tp_iternext(iterator));
    if (item) continue;
    if (PyErr_Occurred() != nullptr) {
      if (!PyErr_ExceptionMatches(PyExc_StopIteration)) return false;
      PyErr_Clear();
    }
  }
  return true;
}

template <>
bool CommitEffect<Effect::Kind::kSetAttr>(const EffectStep& step) {
  return PyObject_GenericSetAttr(step.target, step.name, step.value) >= 0;
}

template <>
bool CommitEffect<Effect::Kind::kDelAttr>(const EffectStep& step) {
  return PyObject_GenericSetAttr(step.target, step.name, nullptr) >= 0;
}

template <>
bool CommitEffect<Effect::Kind::kSetItem>(const EffectStep& step) {
  if (PyDict_Check(step.target) && StoresByIdentity(step.target, step.key)) {
    return StoreByIdentity(step.target, step.key, step.value);
  }
  return PyObject_SetItem(step.target, step.key, step.value) >= 0;
}

template <>
bool CommitEffect<Effect::Kind::kDelItem>(const EffectStep& step) {
  return PyObject_DelItem(step.target, step.key) >= 0;
}

template <>
bool CommitEffect<Effect::Kind::kSetGlobal>(const EffectStep& step) {
  return PyDict_SetItem(step.target, step.name, step.value) >= 0;
}

template <>
bool CommitEffect<Effect::Kind::kSetCell>(const EffectStep& step) {
  return PyCell_Set(step.target, step.value) >= 0;
}

template <>
bool CommitEffect<Effect::Kind::kState>(const EffectStep& step) {
  const long number = PyLong_AsLong(step.value);
  switch (step.effect.state) {
    case StateSwitch::kGradMode:
      c10::GradMode::set_enabled(number != 0);
      break;
    case StateSwitch::kAutocastCpu:
      at::autocast::set_autocast_enabled(at::kCPU, number != 0);
      break;
    case StateSwitch::kAutocastCache:
      at::autocast::set_autocast_cache_enabled(number != 0);
      break;
    case StateSwitch::kAutocastCpuDtype:
      at::autocast::set_autocast_dtype(at::kCPU, static_cast<at::ScalarType>(number));
      break;
    case StateSwitch::kAutocastNesting:
      for (long n = 0; n < number; ++n) at::autocast::increment_nesting();
      for (long n = 0; n > number; --n) {
        if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
      }
      break;
  }
  return true;
}

template <>
bool CommitEffect<Effect::Kind::kCall>(const EffectStep& step) {
  const Ref<> method = EffectMethod(step.target, step.name);
  return method && Ref<>::Steal(PyObject_CallObject(method.get(), step.value));
}

template <>
bool CommitEffect<Effect::Kind::kAsk>(const EffectStep& step) {
  return AskCache(step.target, AskedCallOf(step.value));
}

template <>
bool CommitEffect<Effect::Kind::kLookUp>(const EffectStep& step) {
  PyObject** const items = reinterpret_cast<PyTupleObject*>(step.value)->ob_item;
  return AskCache(step.target, {nullptr, items[0], items + 1, static_cast<size_t>(PyTuple_GET_SIZE(step.value)) - 1});
}

template <>
bool CommitEffect<Effect::Kind::kAdvance>(const EffectStep& step) {
  return Advance(step.target, step.value);
}

template <>
bool CommitEffect<Effect::Kind::kYield>(const EffectStep& step) {
  if (IsRunning(step.target)) return true;  // the session leaves it
  const SnapshotFrame& frame = step.effect.frame;
  PutIntoGenerator(step.target, frame.offset, frame.slots, std::move(step.content.locals),
                   std::move(step.content.stack));
  return true;
}

}  // namespace frametap
