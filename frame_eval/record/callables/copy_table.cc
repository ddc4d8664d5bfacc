// copy.deepcopy of plain data: everything that the copy takes is fixed, and the copy belongs to the trace. (Followed
// instruction by instruction, it would ask for the id of each object that it makes.)
#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/objects/force.h"
#include "frame_eval/record/objects/identity.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/objects/quiet.h"
#include "frame_eval/record/semantics/iterators.h"
#include "guards/objects/dict_items.h"
#include "guards/objects/import.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/well_known_objects.h"
#include "guards/throw_if_null.h"

namespace frametap {
namespace {

[[noreturn]] void Refuse(PyTypeObject* type) {
  throw Break{Reason::unknown_callable, std::string("copy.deepcopy of ") + type->tp_name};
}

// A class of Python code whose instances are copied as object's methods do it: a new object, and a copy of __dict__. (A
// __getattribute__, as configurations of transformers have, is taken to do nothing for the names that copy asks for.)
bool CopiesByDict(PyTypeObject* type) {
  for (PyTypeObject* base = type; base != &PyBaseObject_Type; base = base->tp_base) {
    if (base == nullptr || !(base->tp_flags & Py_TPFLAGS_HEAPTYPE) || !IsPythonClass(base)) return false;
  }
  for (const char* name :
       {"__deepcopy__", "__setstate__", "__getnewargs_ex__", "__getnewargs__", "__slots__", "__getattr__"}) {
    const Ref<> text = Must(PyUnicode_InternFromString(name));
    if (_PyType_Lookup(type, text.get()) != nullptr) return false;
  }
  for (const char* name : {"__reduce_ex__", "__reduce__", "__getstate__", "__new__"}) {
    const Ref<> text = Must(PyUnicode_InternFromString(name));
    if (_PyType_Lookup(type, text.get()) != _PyType_Lookup(&PyBaseObject_Type, text.get())) return false;
  }
  return true;
}

// copy asks the instance for its hooks, so that they may be its own.
bool HasHooks(PyObject* dict) {
  static PyObject* const hooks[] = {InternedName("__deepcopy__"), InternedName("__reduce_ex__"),
                                    InternedName("__reduce__"), InternedName("__getstate__")};
  return std::any_of(std::begin(hooks), std::end(hooks),
                     [dict](PyObject* name) { return ItemQuietly(dict, name) != nullptr; });
}

// object.__reduce_ex__ leaves a list with the class, of no names where it has no slots. Guards are of the class with it.
bool HasSlotNames(PyTypeObject* type) {
  static PyObject* const name = InternedName("__slotnames__");
  PyObject* names = ItemQuietly(type->tp_dict, name);
  if (names != nullptr && !(PyList_CheckExact(names) && PyList_GET_SIZE(names) == 0)) {
    Refuse(type);
  }
  return names != nullptr;
}

class Copied {
 public:
  explicit Copied(Trace& trace) : trace_(trace) {}

  void Fix(PyObject* object, Shadow shadow) {
    Specialize(trace_, object, shadow);
    if (IsScalar(object) || !seen_.insert(object).second) return;
    if (IsTensor(object)) throw Break{Reason::unknown_callable, "copy.deepcopy of a tensor"};
    if (PyFunction_Check(object) || PyType_Check(object) || PyCFunction_Check(object)) {
      return GuardTypeOrIdentity(trace_, object);  // copied as itself
    }
    Meet(object);
    if (PyTuple_CheckExact(object) || PyList_CheckExact(object)) {
      AdoptElements(trace_, object);
      for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
        Fix(PySequence_Fast_GET_ITEM(object, i), ElementShadow(trace_, object, i));
      }
    } else if (PyDict_CheckExact(object)) {
      AdoptElements(trace_, object);
      FixItems(object, object);
    } else if (PySet_CheckExact(object) || PyFrozenSet_CheckExact(object)) {
      FixSet(object);
    } else {
      FixInstance(object);
    }
  }

  // An object that occurs twice is copied once.
  void FixWhichAreOne() {
    constexpr size_t kMostPaired = 16;
    for (const auto& [type, objects] : met_) {
      for (size_t i = 0; i < objects.size(); ++i) {
        if (objects.size() > kMostPaired) {
          trace_.guards.Add(GuardKind::kAddress, SourceOf(trace_, objects[i]), trace_.frames.Here());
          continue;
        }
        for (size_t k = 0; k < i; ++k) ReadSame(trace_, objects[k], objects[i]);
      }
    }
  }

 private:
  void Meet(PyObject* object) {
    if (!SourceOf(trace_, object).valid() || IsConstantTuple(trace_, object)) return;
    auto of_type =
        std::find_if(met_.begin(), met_.end(), [&](const auto& one) { return one.first == Py_TYPE(object); });
    if (of_type == met_.end()) of_type = met_.insert(met_.end(), {Py_TYPE(object), {}});
    of_type->second.push_back(object);
  }

  // The entries of copy's tables for a class go before the methods of the class.
  void FixDispatch(PyTypeObject* type) {
    PyObject* const key = reinterpret_cast<PyObject*>(type);
    for (PyObject* const table : Objects().copy_dispatch) {
      RefuseWrittenDict(trace_, table);
      if (ItemQuietly(table, key) != nullptr) Refuse(type);
      trace_.guards.Absent(SourceOrPin(trace_, table), key, trace_.frames.Here());
    }
  }

  void FixSet(PyObject* set) {
    FixDispatch(Py_TYPE(set));
    SpecializeDeep(trace_, set, Shadow(), false);
    Py_ssize_t at = 0;
    PyObject* element;
    Py_hash_t hash;
    while (_PySet_NextEntry(set, &at, &element, &hash)) {
      if (!IsScalar(element)) throw Break{Reason::unknown_callable, "copy.deepcopy of a set of objects"};
    }
  }

  // For a dict. Shadows of the values that the trace has written lie with `owner`, the dict or its object.
  void FixItems(PyObject* dict, PyObject* owner) {
    for (const auto [key, value] : DictItems(dict)) {
      Fix(key, Shadow());
      Shadow* written = WrittenShadow(trace_, owner, key);
      Fix(value, written != nullptr ? *written : Shadow());
    }
  }

  void FixInstance(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    ObjectRecord* known = trace_.objects.Find(object);
    PyObject** dict = _PyObject_GetDictPtr(object);
    if (known == nullptr || known->state == ObjectRecord::State::kOpaque || dict == nullptr || *dict == nullptr ||
        !CopiesByDict(type) || HasHooks(*dict)) {
      Refuse(type);
    }
    RefuseSharedDict(trace_, object, *dict);
    FixDispatch(type);
    if (!HasSlotNames(type)) throw Break{Reason::done_once, std::string("copy.deepcopy of ") + type->tp_name};
    GuardTypeOrIdentity(trace_, object);
    trace_.guards.Class(type, trace_.frames.Here());
    static PyObject* const kNames[] = {InternedName("__new__"), InternedName("__setstate__"),
                                       InternedName("__slotnames__")};
    for (PyObject* name : kNames) trace_.guards.ReadsName(name);
    if (known->state == ObjectRecord::State::kSource && !known->mutated) {
      SourceId source = trace_.guards.Child(known->source, Accessor::kDict, 0, nullptr, *dict);
      FromSource(trace_, source, *dict, known->pinned);
      AdoptElements(trace_, *dict);
    } else if (known->state == ObjectRecord::State::kSource) {
      throw Break{Reason::unknown_callable, "copy.deepcopy of what was changed before"};
    }
    FixItems(*dict, object);
  }

  Trace& trace_;
  absl::flat_hash_set<PyObject*> seen_;
  std::vector<std::pair<PyTypeObject*, std::vector<PyObject*>>> met_;  // what existed before, by its type
};

void DeepCopy(Trace& trace, Call& call) {
  if (call.args.size() != 1) throw Break{Reason::unknown_callable, "copy.deepcopy"};
  Copied copied(trace);
  copied.Fix(call.args[0], call.shadows[0]);
  copied.FixWhichAreOne();
  call.note.op.opaque_operation = true;
}

}  // namespace

void LoadCopy() {
  Ref<> module = ImportModule("copy");
  Ref<> deepcopy = module ? Ref<>::Steal(PyObject_GetAttrString(module.get(), "deepcopy")) : Ref<>();
  AddRow(deepcopy.get(), {"deepcopy", Conduct::kSpecial, DeepCopy});
}

}  // namespace frametap
