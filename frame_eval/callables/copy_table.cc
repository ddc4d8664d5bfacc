// copy.deepcopy of plain data: everything that the copy takes is fixed, and the copy belongs to the trace. (Followed
// instruction by instruction, it would ask for the id of each object that it makes.)
#include "absl/container/flat_hash_set.h"
#include "frame_eval/callables/table.h"
#include "frame_eval/known_objects.h"
#include "guards/must.h"
#include "guards/tensor_door.h"

namespace frametap {
namespace {

// A class of Python code whose instances are copied as object's methods do it: a new object, and a copy of __dict__.
bool CopiesByDict(PyTypeObject* type) {
  for (PyTypeObject* base = type; base != &PyBaseObject_Type; base = base->tp_base) {
    if (base == nullptr || !(base->tp_flags & Py_TPFLAGS_HEAPTYPE) ||
        base->tp_dealloc != Objects().module->tp_dealloc) {
      return false;
    }
  }
  for (const char* name : {"__deepcopy__", "__setstate__", "__getnewargs_ex__", "__getnewargs__", "__slots__"}) {
    const Ref<> text = Must(PyUnicode_InternFromString(name));
    if (_PyType_Lookup(type, text.get()) != nullptr) return false;
  }
  for (const char* name : {"__reduce_ex__", "__reduce__", "__getstate__", "__new__"}) {
    const Ref<> text = Must(PyUnicode_InternFromString(name));
    if (_PyType_Lookup(type, text.get()) != _PyType_Lookup(&PyBaseObject_Type, text.get())) return false;
  }
  return true;
}

class Copied {
 public:
  explicit Copied(Recorder& recorder) : r_(recorder) {}

  void Fix(PyObject* object, Shadow shadow) {
    r_.Force(object, shadow);
    if (Recorder::IsScalar(object) || !seen_.insert(object).second) return;
    if (IsTensor(object)) throw Break{Reason::unknown_callable, "copy.deepcopy of a tensor"};
    if (PyTuple_CheckExact(object) || PyList_CheckExact(object)) {
      r_.AdoptElements(object);
      for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
        Fix(PySequence_Fast_GET_ITEM(object, i), r_.ElementShadow(object, i));
      }
    } else if (PyDict_CheckExact(object)) {
      r_.AdoptElements(object);
      FixItems(object, object);
    } else if (PySet_CheckExact(object) || PyFrozenSet_CheckExact(object)) {
      r_.ForceDeep(object, Shadow(), false);
    } else if (PyFunction_Check(object) || PyType_Check(object) || PyCFunction_Check(object)) {
      r_.Touch(object);  // copied as itself
    } else {
      FixInstance(object);
    }
  }

 private:
  // Of a dict; shadows of what the trace has written lie with `owner`, the dict or its object.
  void FixItems(PyObject* dict, PyObject* owner) {
    Py_ssize_t at = 0;
    PyObject *key, *value;
    while (PyDict_Next(dict, &at, &key, &value)) {
      Fix(key, Shadow());
      Shadow* written = r_.WrittenShadow(owner, key);
      Fix(value, written != nullptr ? *written : Shadow());
    }
  }

  void FixInstance(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    Known* known = r_.Find(object);
    PyObject** dict = _PyObject_GetDictPtr(object);
    if (known == nullptr || known->state == Known::State::kOpaque || dict == nullptr || *dict == nullptr ||
        !CopiesByDict(type)) {
      throw Break{Reason::unknown_callable, std::string("copy.deepcopy of ") + type->tp_name};
    }
    r_.Touch(object);
    r_.guards().Class(type, r_.Here());
    if (known->state == Known::State::kSource && !known->mutated) {
      SourceId source = r_.guards().Child(known->source, Accessor::kDict, 0, nullptr, *dict);
      r_.FromSource(source, *dict, known->pinned);
      r_.AdoptElements(*dict);
    } else if (known->state == Known::State::kSource) {
      throw Break{Reason::unknown_callable, "copy.deepcopy of what was changed before"};
    }
    FixItems(*dict, object);
  }

  Recorder& r_;
  absl::flat_hash_set<PyObject*> seen_;
};

void DeepCopy(Recorder& r, Call& call) {
  if (call.args.size() != 1) throw Break{Reason::unknown_callable, "copy.deepcopy"};
  Copied(r).Fix(call.args[0], call.shadows[0]);
  call.note.opaque_operation = true;
}

}  // namespace

void LoadCopy() {
  Ref<> module = Ref<>::Steal(PyImport_ImportModule("copy"));
  Ref<> deepcopy = module ? Ref<>::Steal(PyObject_GetAttrString(module.get(), "deepcopy")) : Ref<>();
  AddRow(deepcopy.get(), {"deepcopy", Conduct::kSpecial, DeepCopy});
}

}  // namespace frametap
