// Forcing: an operation may read the value of an object in any way. Open numbers in it are fixed, containers as a whole.
#include <algorithm>
#include <cstring>

#include "absl/container/flat_hash_set.h"
#include "frame_eval/record/callables/getters.h"
#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/fast_paths/repeated_calls.h"
#include "frame_eval/record/objects/quiet.h"
#include "frame_eval/record/recorder.h"
#include "frame_eval/record/semantics/mapping_proxies.h"
#include "guards/cpython/deque_view.h"
#include "guards/must.h"
#include "guards/objects/held_object.h"
#include "guards/objects/known_objects.h"
#include "guards/objects/namespaces.h"
#include "guards/objects/object_end.h"
#include "guards/objects/tensor_door.h"

namespace frametap {

void Recorder::ForceAll(const Event& e) {
  for (int i = 0; i < e.n; ++i) {
    if (e.in[i] == nullptr) continue;
    Force(e.in[i], e.shadows[i]);
    Touch(e.in[i]);
  }
}

// Containers may hold each other, and themselves.
struct Recorder::DeepWalk {
  bool tensors_allowed;
  int depth = 0;
  absl::InlinedVector<PyObject*, 8> first;  // most hold a few
  absl::flat_hash_set<PyObject*> others;
  bool Visit(PyObject* container) {
    if (std::find(first.begin(), first.end(), container) != first.end()) return false;
    if (first.size() == 8) return others.insert(container).second;
    first.push_back(container);
    return true;
  }
};

void Recorder::ForceDeep(PyObject* object, Shadow shadow, bool tensors_allowed) {
  if (object != nullptr && IsScalar(object)) return Force(object, shadow);
  DeepWalk walk{tensors_allowed, 0, {}, {}};
  ForceDeep(object, shadow, &walk);
}

void Recorder::ForceArguments(const Call& call, size_t from, bool tensors_allowed) {
  for (size_t i = from; i < call.args.size(); ++i) ForceDeep(call.args[i], call.shadows[i], tensors_allowed);
}

void Recorder::ForceDeep(PyObject* object, Shadow shadow, DeepWalk* walk) {
  constexpr int kDeepest = 200;
  if (object == nullptr) return;
  Force(object, shadow);
  if (IsScalar(object)) return;
  if (IsTensor(object)) {
    if (!walk->tensors_allowed) throw Break{Reason::unknown_operation, "a tensor in plain Python code"};
    if (!IsExactTensor(object)) throw Break{Reason::tensor_subclass, Py_TYPE(object)->tp_name};
    return;
  }
  RefuseForeignOperator(object);
  bool is_row = PyTuple_Check(object) || PyList_Check(object);
  if (is_row || PyDict_Check(object)) {
    if (!walk->Visit(object)) return;
    if (++walk->depth > kDeepest) throw Break{Reason::unknown_operation, "an object nested very deeply"};
  }
  if (is_row) {
    AdoptElements(object);
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
      ForceDeep(PySequence_Fast_GET_ITEM(object, i), ElementShadow(object, i), walk);
    }
    --walk->depth;
  } else if (PyDict_Check(object)) {
    FixKeys(object);
    AdoptElements(object);
    Py_ssize_t at = 0;
    PyObject *key, *value;
    while (PyDict_Next(object, &at, &key, &value)) {
      const Shadow* const open = StoredItem(object, key);
      ForceDeep(value, open != nullptr ? *open : Shadow(), walk);
    }
    if (MayHoldOpen(object)) Find(object)->is_viewed = true;  // an iterator, or C code, may look at it again
    --walk->depth;
  } else if (PyObject* const dict = DictBelow(*this, object)) {
    ForceDeep(dict, Shadow(), walk);
  } else if (IsDeque(object)) {
    if (!walk->Visit(object)) return;
    AdoptElements(object);
    for (Py_ssize_t i = 0; i < DequeLength(object); ++i) ForceDeep(DequeItem(object, i), Shadow(), walk);
  } else {
    if (IsAnySet(object)) {
      FixKeys(object);
      AdoptElements(object);
      ReadOrder(object);
    }
    if (PySlice_Check(object)) ForceItems(object);
    if (!open_iterators_.empty()) CloseIterator(object);
    if (IsForeign(object)) {
      throw Break{Reason::unknown_operation, std::string("an object of type ") + Py_TYPE(object)->tp_name};
    }
    if (IsGetter(object)) return FixContent(object);
    Touch(object);
  }
}

}  // namespace frametap
