#include "frame_eval/record/objects/force.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "frame_eval/record/callables/getters.h"
#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/numbers/sequences.h"
#include "frame_eval/record/objects/identity.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/objects/open_keys.h"
#include "frame_eval/record/objects/outside_containers.h"
#include "frame_eval/record/objects/own_dicts.h"
#include "frame_eval/record/objects/set_check.h"
#include "frame_eval/record/semantics/foreign_operators.h"
#include "frame_eval/record/semantics/mapping_proxies.h"
#include "frame_eval/record/semantics/observers.h"
#include "frame_eval/record/shared_breaks.h"
#include "guards/cpython/deque_view.h"
#include "guards/objects/dict_items.h"
#include "guards/objects/held_object.h"
#include "guards/objects/namespaces.h"
#include "guards/objects/torch_tensor.h"

namespace frametap {

struct DeepWalk;
static void SpecializeDeep(Trace& trace, PyObject* object, Shadow shadow, DeepWalk* walk);

void SpecializeAll(Trace& trace, const Event& e) {
  for (int i = 0; i < e.n; ++i) {
    if (e.in[i] == nullptr) continue;
    Specialize(trace, e.in[i], e.shadows[i]);
    GuardTypeOrIdentity(trace, e.in[i]);
  }
}

// Containers may hold each other, and themselves.
struct DeepWalk {
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

void SpecializeDeep(Trace& trace, PyObject* object, Shadow shadow, bool tensors_allowed) {
  if (object != nullptr && IsScalar(object)) return Specialize(trace, object, shadow);
  DeepWalk walk{tensors_allowed, 0, {}, {}};
  SpecializeDeep(trace, object, shadow, &walk);
}

void SpecializeArguments(Trace& trace, const Call& call, size_t from, bool tensors_allowed) {
  for (size_t i = from; i < call.args.size(); ++i)
    SpecializeDeep(trace, call.args[i], call.shadows[i], tensors_allowed);
}

static void SpecializeDeep(Trace& trace, PyObject* object, Shadow shadow, DeepWalk* walk) {
  constexpr int kDeepest = 200;
  if (object == nullptr) return;
  Specialize(trace, object, shadow);
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
    if (++walk->depth > kDeepest) throw TooDeep();
  }
  if (is_row) {
    AdoptElements(trace, object);
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
      SpecializeDeep(trace, PySequence_Fast_GET_ITEM(object, i), ElementShadow(trace, object, i), walk);
    }
    --walk->depth;
  } else if (PyDict_Check(object)) {
    FixKeys(trace, object);
    AdoptElements(trace, object);
    for (const auto [key, value] : DictItems(object)) {
      SpecializeDeep(trace, value, ShadowOfItem(trace, object, key), walk);
    }
    if (MayHoldOpen(trace, object))
      trace.objects.Find(object)->is_viewed = true;  // an iterator, or C code, may look at it again
    --walk->depth;
  } else if (PyObject* const dict = DictBelow(trace, object)) {
    SpecializeDeep(trace, dict, Shadow(), walk);
  } else if (IsDeque(object)) {
    if (!walk->Visit(object)) return;
    AdoptElements(trace, object);
    for (Py_ssize_t i = 0; i < DequeLength(object); ++i) SpecializeDeep(trace, DequeItem(object, i), Shadow(), walk);
  } else {
    if (IsAnySet(object)) {
      if (ObjectRecord* const known = trace.objects.Find(object); known != nullptr) known->is_viewed = true;
      FixKeys(trace, object);
      AdoptElements(trace, object);
      ReadOrder(trace, object);
    }
    if (PySlice_Check(object)) SpecializeItems(trace, object);
    if (!trace.iteration.open.empty()) CloseIterator(trace, object);
    FixView(trace, object);
    if (IsMark(object)) return FixMark(trace, object);
    if (IsForeign(trace, object)) {
      throw Break{Reason::unknown_operation, std::string("an object of type ") + Py_TYPE(object)->tp_name};
    }
    if (IsGetter(object)) return FixContent(trace, object);
    GuardTypeOrIdentity(trace, object);
  }
}

}  // namespace frametap
