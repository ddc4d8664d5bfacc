#include "frame_eval/record/callables/table.h"

#include <cstring>

#include "absl/container/flat_hash_map.h"
#include "frame_eval/record/objects/quiet.h"
#include "guards/objects/dict_read.h"
#include "guards/objects/import.h"
#include "guards/objects/well_known_objects.h"
#include "guards/ref.h"
#include "guards/throw_if_null.h"

namespace frametap {
namespace {

absl::flat_hash_map<const void*, CallableRow>& Rows() {
  static auto* rows = new absl::flat_hash_map<const void*, CallableRow>();
  return *rows;
}

// Layout of CPython's wrapperobject ("method-wrapper"), which descrobject.c keeps to itself.
struct MethodWrapper {
  PyObject_HEAD PyWrapperDescrObject* descr;
  PyObject* self;
};

}  // namespace

const void* KeyOf(PyObject* callable) {
  if (PyCFunction_Check(callable)) {
    const PyMethodDef* const method = reinterpret_cast<PyCFunctionObject*>(callable)->m_ml;
    PyObject* const self = PyCFunction_GET_SELF(callable);
    // The __new__ of all types in C is one method: the slot determines the type of the result.
    if (method == Objects().type_new && self != nullptr && PyType_Check(self)) {
      return reinterpret_cast<const void*>(reinterpret_cast<PyTypeObject*>(self)->tp_new);
    }
    return method;
  }
  if (Py_TYPE(callable) == &PyMethodDescr_Type || Py_TYPE(callable) == &PyClassMethodDescr_Type) {
    return reinterpret_cast<PyMethodDescrObject*>(callable)->d_method;
  }
  if (Py_TYPE(callable) == Objects().method_wrapper) return reinterpret_cast<MethodWrapper*>(callable)->descr;
  return callable;
}

void AddRow(PyObject* callable, CallableRow row) {
  if (callable == nullptr) {
    PyErr_Clear();
    return;
  }
  // A method of a class of pybind11: the function in it is the one that a bound method calls.
  if (PyInstanceMethod_Check(callable)) callable = PyInstanceMethod_GET_FUNCTION(callable);
  // Kept for ever: a key must not be reused by another object.
  Py_INCREF(callable);
  Rows().insert_or_assign(KeyOf(callable), row);
}

Ref<> OwnerOf(const char* module, const char* path) {
  Ref<> owner = ImportModule(module);
  if (owner && path[0] != '\0') owner = Ref<>::Steal(PyObject_GetAttrString(owner.get(), path));
  if (!owner) PyErr_Clear();
  return owner;
}

void AddRows(const char* module, const char* path, Conduct conduct, std::initializer_list<const char*> names,
             Reads reads) {
  const Ref<> owner = OwnerOf(module, path);
  if (!owner) return;
  for (const char* name : names) {
    Ref<> callable = Ref<>::Steal(PyObject_GetAttrString(owner.get(), name));
    const bool by_value = reads == Reads::kValues && (conduct == Conduct::kPure || conduct == Conduct::kPureObjects);
    AddRow(callable.get(), {name, conduct, nullptr, reads, by_value});
  }
}

void AddSpecial(const char* module, const char* path, const char* name, SpecialRow row, bool by_value, Reads reads) {
  const Ref<> owner = OwnerOf(module, path);
  Ref<> callable = owner ? Ref<>::Steal(PyObject_GetAttrString(owner.get(), name)) : Ref<>();
  AddRow(callable.get(), {name, Conduct::kSpecial, row, reads, by_value});
}

const char* ConductName(Conduct conduct) {
  switch (conduct) {
    case Conduct::kPure:
      return "pure";
    case Conduct::kPureObjects:
      return "pure_objects";
    case Conduct::kTransparent:
      return "transparent";
    case Conduct::kTorch:
      return "torch";
    case Conduct::kState:
      return "state";
    case Conduct::kMutates:
      return "mutates";
    case Conduct::kTensorValue:
      return "tensor_value";
    case Conduct::kRefused:
      return "refused";
    case Conduct::kSpecial:
      return "special";
  }
  return "";
}

const CallableRow* FindCallable(PyObject* callable) {
  auto it = Rows().find(KeyOf(callable));
  return it == Rows().end() ? nullptr : &it->second;
}

bool IsModuleFunction(PyObject* builtin) {
  PyObject* self = PyCFunction_GET_SELF(builtin);
  if (self == nullptr || PyModule_Check(self) || PyType_Check(self)) return true;
  // pybind11 binds its functions to a record of its own, a class of the extension module.
  return Py_TYPE(self) == Objects().pybind_record;
}

namespace {

std::string CharsOf(PyObject* value) {
  const char* const chars = value != nullptr && PyUnicode_Check(value) ? PyUnicode_AsUTF8(value) : nullptr;
  PyErr_Clear();
  return chars != nullptr ? chars : "";
}

std::string WithModule(const std::string& module, const std::string& name) {
  return module.empty() || module == "builtins" ? name : module + "." + name;
}

// Returns the text under a name, or "". A class made in Python may run code where an attribute is read. Such an object
// answers by its dict and by the dicts of its bases.
std::string TextQuietly(PyObject* object, PyObject* name) {
  PyTypeObject* const type = Py_TYPE(object);
  if ((type->tp_flags & Py_TPFLAGS_HEAPTYPE) == 0) return CharsOf(Ref<>::Steal(PyObject_GetAttr(object, name)).get());
  if (type->tp_getattro != PyObject_GenericGetAttr || !HasPlainNames(type)) return "";
  PyObject* found = nullptr;
  PyObject** const own = _PyObject_GetDictPtr(object);
  if (own != nullptr && *own != nullptr) NameGet(*own, name, &found);
  if (found == nullptr) found = _PyType_Lookup(type, name);
  if (found != nullptr && Py_TYPE(found) == &PyGetSetDescr_Type) {  // of C code
    return CharsOf(Ref<>::Steal(PyObject_GetAttr(object, name)).get());
  }
  return CharsOf(found);
}

// Returns the qualified name of a class without asking its metaclass.
std::string QualnameOf(PyTypeObject* type) {
  if (type->tp_flags & Py_TPFLAGS_HEAPTYPE) return CharsOf(reinterpret_cast<PyHeapTypeObject*>(type)->ht_qualname);
  const char* const dot = std::strrchr(type->tp_name, '.');
  return dot == nullptr ? type->tp_name : dot + 1;
}

std::string ClassWords(PyTypeObject* type) {
  static PyObject* const module = InternedName("__module__");
  if ((type->tp_flags & Py_TPFLAGS_HEAPTYPE) == 0) return type->tp_name;
  PyObject* found = nullptr;
  NameGet(type->tp_dict, module, &found);
  return WithModule(CharsOf(found), QualnameOf(type));
}

}  // namespace

std::string CallableName(PyObject* callable) {
  static PyObject *const qualname = InternedName("__qualname__"), *const plain_name = InternedName("__name__"),
                         *const module_name = InternedName("__module__");
  const ErrScope keep;
  if (PyFunction_Check(callable)) {  // most are, and keep both at hand
    auto* const function = reinterpret_cast<PyFunctionObject*>(callable);
    std::string name = CharsOf(function->func_qualname);
    if (!name.empty()) return WithModule(CharsOf(function->func_module), name);
  }
  if (PyMethod_Check(callable)) return CallableName(PyMethod_GET_FUNCTION(callable));
  if (PyType_Check(callable)) return ClassWords(reinterpret_cast<PyTypeObject*>(callable));
  std::string name;
  if (!PyCFunction_Check(callable)) {
    name = TextQuietly(callable, qualname);
  } else if (!IsModuleFunction(callable)) {  // __qualname__ would ask the class
    return QualnameOf(Py_TYPE(PyCFunction_GET_SELF(callable))) + "." +
           reinterpret_cast<PyCFunctionObject*>(callable)->m_ml->ml_name;
  }
  if (name.empty()) name = TextQuietly(callable, plain_name);
  if (name.empty()) return std::string("an object of type ") + Py_TYPE(callable)->tp_name;
  return WithModule(TextQuietly(callable, module_name), name);
}

Break Refusal(PyObject* callable) {
  return {SortOf(callable).value_or(Reason::unknown_callable), CallableName(callable)};
}

bool LoadCallables() {
  LoadBuiltins();
  LoadNumbers();
  LoadText();
  LoadIteration();
  LoadContainers();
  LoadCopy();
  LoadTorch();
  LoadNumPy();
  LoadSorts();
  return PyErr_Occurred() == nullptr;
}

}  // namespace frametap
