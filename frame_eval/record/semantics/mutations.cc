#include "frame_eval/record/semantics/mutations.h"

#include <cstddef>
#include <cstring>
#include <tuple>

#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/numbers/sequences.h"
#include "frame_eval/record/objects/force.h"
#include "frame_eval/record/objects/identity.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/objects/open_keys.h"
#include "frame_eval/record/objects/outside_containers.h"
#include "frame_eval/record/objects/own_dicts.h"
#include "frame_eval/record/objects/quiet.h"
#include "frame_eval/record/objects/set_check.h"
#include "frame_eval/record/semantics/containers.h"
#include "frame_eval/segment/new_objects.h"
#include "guards/kinds/keys.h"
#include "guards/throw_if_null.h"

namespace frametap {
namespace {

bool IsOwnAndMayChange(Trace& trace, PyObject* object) {
  const ObjectRecord* known = trace.objects.Find(object);
  const bool may_change = PyList_Check(object) || PyDict_Check(object) || PySet_Check(object);
  return may_change && known != nullptr && known->state != ObjectRecord::State::kSource;
}

// Methods that keep what their argument holds, and not the argument.
bool TakesContent(const char* method) {
  for (const char* one :
       {"extend", "update", "difference_update", "intersection_update", "symmetric_difference_update"}) {
    if (std::strcmp(method, one) == 0) return true;
  }
  return false;
}

// A row of the trace's own as a tuple that holds the same.
Ref<> TupleOf(Trace& trace, PyObject* row) {
  Ref<> tuple = Must(PySequence_Tuple(row));
  if (PyTuple_GET_SIZE(tuple.get()) == 0) return tuple;  // there is one
  ObjectRecord& known = AddFresh(trace, tuple.get());
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple.get()); ++i) known.items.push_back(ElementShadow(trace, row, i));
  return tuple;
}

// A copy of the present content of `arg`, for an effect that takes it. Effects are described at the end, when the
// trace may have changed it. An object from outside changes by effects, which come in their order.
Ref<> ContentNow(Trace& trace, PyObject* arg, const char* method) {
  const auto iterates_as = [arg](const PyTypeObject& builtin) { return Py_TYPE(arg)->tp_iter == builtin.tp_iter; };
  const ObjectRecord* known = trace.objects.Find(arg);
  const bool is_ordered = PyODict_CheckExact(arg);
  const bool is_dict = is_ordered || (PyDict_Check(arg) && iterates_as(PyDict_Type));
  const bool is_list = PyList_Check(arg) && iterates_as(PyList_Type);
  const bool is_builtin = is_dict || is_list || PyAnySet_CheckExact(arg);
  if (IsScalar(arg) || PyRange_Check(arg) || PyFrozenSet_CheckExact(arg) ||
      (PyTuple_Check(arg) && iterates_as(PyTuple_Type)) ||
      (is_builtin && known != nullptr && known->state == ObjectRecord::State::kSource)) {
    return Ref<>::New(arg);
  }
  if (is_list) return TupleOf(trace, arg);
  if (PyDictViewSet_Check(arg) || PyDictValues_Check(arg)) {
    Ref<> content = Must(PySequence_Tuple(arg));
    AdoptResult(trace, content.get());
    return content;
  }
  Ref<> copy;
  if (is_ordered) {
    copy = Must(PyDict_New());
    const Ref<> keys = KeysInOrder(arg);
    if (PyTuple_GET_SIZE(keys.get()) != PyDict_GET_SIZE(arg)) copy = Ref<>();
    for (Py_ssize_t i = 0; copy && i < PyTuple_GET_SIZE(keys.get()); ++i) {
      PyObject* key = PyTuple_GET_ITEM(keys.get(), i);
      PyObject* value = IsScalar(key) ? ItemQuietly(arg, key) : nullptr;  // no hash of code
      if (value == nullptr || PyDict_SetItem(copy.get(), key, value) < 0) copy = Ref<>();
    }
    PyErr_Clear();
  } else if (is_dict) {
    copy = CopyDict(arg);
  } else if (PySet_CheckExact(arg)) {
    if (std::strcmp(method, "extend") == 0) return TupleOf(trace, arg);
    copy = Must(PySet_New(arg));
    const Ref<> order = Must(PySequence_Tuple(arg)), order_of_copy = Must(PySequence_Tuple(copy.get()));
    for (Py_ssize_t i = 0; copy && i < PyTuple_GET_SIZE(order.get()); ++i) {
      if (PyTuple_GET_ITEM(order.get(), i) != PyTuple_GET_ITEM(order_of_copy.get(), i)) copy = Ref<>();
    }
  }
  if (!copy) {
    throw Break{Reason::unknown_mutation, std::string(method) + " with an object of type " + Py_TYPE(arg)->tp_name};
  }
  AddFresh(trace, copy.get());
  return copy;
}

// dict.update([[key, value]]): the pairs are taken apart too, also the pairs of a sequence from outside.
Ref<> PairsNow(Trace& trace, PyObject* rows) {
  const PyTypeObject& builtin = PyTuple_Check(rows) ? PyTuple_Type : PyList_Type;
  if (Py_TYPE(rows)->tp_iter != builtin.tp_iter) return ContentNow(trace, rows, "update");
  Ref<> pairs = Must(PyList_New(0));
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(rows); ++i) {
    const Ref<> pair = ContentNow(trace, PySequence_Fast_GET_ITEM(rows, i), "update");
    if (PyList_Append(pairs.get(), pair.get()) < 0) throw std::bad_alloc();
  }
  return TupleOf(trace, pairs.get());
}

// dict.update(key=value …) of a dict that existed before: a store under each key. Returns false if it is another call.
bool UpdateByNames(Trace& trace, const Call& call) {
  PyObject* const dict = call.args[0];
  const ObjectRecord* const known = trace.objects.Find(dict);
  if (known == nullptr || known->state != ObjectRecord::State::kSource || !PyDict_CheckExact(dict)) return false;
  if (call.positional() != 1 || call.names.empty()) return false;
  for (size_t i = 0; i < call.names.size(); ++i) {
    FrameNote store;
    StoreSubscript(trace, store, dict, call.names[i], call.args[i + 1], Shadow(), call.shadows[i + 1]);
  }
  return true;
}

}  // namespace

void Mutate(Trace& trace, Call& call, const CallableRow& row) {
  if (call.args.empty()) return;
  PyObject* self = call.args[0];
  if (ChangeList(trace, call, row.name)) return;
  if (std::strcmp(row.name, "update") == 0 && (UpdateOwn(trace, call) || UpdateByNames(trace, call))) return;
  if (std::strcmp(row.name, "pop") == 0 && PopOwn(trace, call)) return;
  if (call.args.size() == 2 && call.names.empty() && PyList_CheckExact(self)) {
    if (std::strcmp(row.name, "append") == 0 && AppendOutside(trace, self, nullptr, call.args[1], call.shadows[1]))
      return;
    if (std::strcmp(row.name, "extend") == 0 && AppendOutside(trace, self, call.args[1], nullptr, Shadow())) return;
  }
  const auto adds_key = [&] { return std::strcmp(row.name, IsAnySet(self) ? "add" : "setdefault") == 0; };
  const bool may_be_open =
      call.args.size() > 1 && (trace.objects.has_open_keys || AddressedBy(trace, call.shadows[1]).valid());
  const bool stays_open = may_be_open && adds_key() && AddKey(trace, self, call.args[1], call.shadows[1]);
  for (size_t i = stays_open ? 2 : 1; i < call.args.size(); ++i) {
    if (std::strcmp(row.name, "append") == 0 || std::strcmp(row.name, "add") == 0) {
      IsAnySet(self) ? SpecializeKey(trace, call.args[i], call.shadows[i])
                     : Specialize(trace, call.args[i], call.shadows[i]);
    } else {
      SpecializeDeep(trace, call.args[i], call.shadows[i], true);
      ReadLayout(trace, call.args[i]);
    }
  }
  if (std::strcmp(row.name, "pop") == 0) {
    if (IsAnySet(self)) ReadOrder(trace, self);
    ReadLayout(trace, self);
  }
  ObjectRecord* known = trace.objects.Find(self);
  if (known == nullptr) throw Break{Reason::unknown_mutation, CallableName(call.callable)};
  bool is_source = known->state == ObjectRecord::State::kSource;
  BeginMutation(trace, self);
  ReadIdentities(trace, row.reads, call);
  if (is_source) {
    const Ref<> method = EffectMethod(self, Must(PyUnicode_InternFromString(row.name)).get());
    PyErr_Clear();
    // dict.pop of an OrderedDict is not its pop.
    const bool is_own = method && FindCallable(method.get()) == &row;
    if (!call.names.empty() || !is_own) throw Break{Reason::unknown_mutation, CallableName(call.callable)};
    std::vector<PyObject*> values(call.args.begin() + 1, call.args.end());
    std::vector<Ref<>> contents;  // AddEffect keeps them
    for (PyObject*& value : values) {
      if (!TakesContent(row.name)) break;
      const bool is_row = PyTuple_Check(value) || PyList_Check(value);
      contents.push_back(is_row && PyDict_Check(self) ? PairsNow(trace, value) : ContentNow(trace, value, row.name));
      value = contents.back().get();
    }
    if (row.reads != Reads::kValues && contents.empty() && !values.empty() && IsOwnAndMayChange(trace, values[0])) {
      throw Break{Reason::unknown_mutation, CallableName(call.callable)};  // remove: compared with the present content
    }
    AddEffect(trace, Effect::Kind::kCall, self, row.name, values, std::vector<Shadow>(values.size()));
  }
}

}  // namespace frametap
