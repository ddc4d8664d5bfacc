// Sorts: user-level facts about a callable or object that is not part of a graph. It prints, it is NumPy's, or it
// gives another value each time. Types, modules and functions are looked up once and known by their addresses.
#include "absl/container/flat_hash_map.h"
#include "frame_eval/record/callables/table.h"

namespace frametap {
namespace {

using Sorts = absl::flat_hash_map<const void*, Reason>;

// Callables (KeyOf), the modules that C functions belong to, and the globals of Python code.
Sorts& Things() {
  static auto* things = new Sorts();
  return *things;
}

// Types: with all that is derived from them, their methods and their instances.
Sorts& Types() {
  static auto* types = new Sorts();
  return *types;
}

// Returns the object at a path such as "io.StringIO", in a module that has been imported, or null.
Ref<> Loaded(const char* module, std::initializer_list<const char*> path) {
  const Ref<> name = Ref<>::Steal(PyUnicode_FromString(module));
  Ref<> object = name ? Ref<>::Steal(PyImport_GetModule(name.get())) : Ref<>();
  for (const char* part : path) {
    if (object) object = Ref<>::Steal(PyObject_GetAttrString(object.get(), part));
  }
  PyErr_Clear();
  return object;
}

// Kept for ever: an address must not be used again by another object.
void AddThing(Ref<> object, Reason reason) {
  if (object) Things().insert_or_assign(KeyOf(object.Release()), reason);
}

void AddType(Ref<> type, Reason reason) {
  if (type && PyType_Check(type.get())) Types().insert_or_assign(type.Release(), reason);
}

// All that the dict of a module or type holds: functions that Cython made belong to no module that they show.
void AddAllOf(const Ref<>& owner, Reason reason) {
  const Ref<> names = owner ? Ref<>::Steal(PyObject_Dir(owner.get())) : Ref<>();
  for (Py_ssize_t i = 0; names && i < PyList_GET_SIZE(names.get()); ++i) {
    Ref<> object = Ref<>::Steal(PyObject_GetAttr(owner.get(), PyList_GET_ITEM(names.get(), i)));
    if (object && PyCallable_Check(object.get()) && !PyType_Check(object.get()) && !PyFunction_Check(object.get()) &&
        FindCallable(object.get()) == nullptr) {
      AddThing(std::move(object), reason);
    }
  }
  PyErr_Clear();
}

// NumPy imports this module at its first use, which may come after LoadSorts.
void LoadRandomOfNumPy() {
  static bool is_loaded = false;
  const Ref<> module = is_loaded ? Ref<>() : Loaded("numpy.random", {});
  if (!module) return;
  is_loaded = true;
  AddAllOf(module, Reason::numpy_code);
  for (const char* name : {"Generator", "RandomState", "BitGenerator", "SeedSequence"}) {
    AddType(Loaded("numpy.random", {name}), Reason::numpy_code);
    AddAllOf(Loaded("numpy.random", {name}), Reason::numpy_code);
  }
}

std::optional<Reason> SortOfThing(const void* thing) {
  const auto it = Things().find(thing);
  return it == Things().end() ? std::nullopt : std::optional(it->second);
}

std::optional<Reason> SortOfType(const PyTypeObject* type) {
  for (Py_ssize_t i = 0; type->tp_mro != nullptr && i < PyTuple_GET_SIZE(type->tp_mro); ++i) {
    const auto it = Types().find(PyTuple_GET_ITEM(type->tp_mro, i));
    if (it != Types().end()) return it->second;
  }
  return std::nullopt;
}

std::optional<Reason> SortOfOwner(PyObject* owner) {
  if (std::optional<Reason> sort = SortOfThing(owner)) return sort;
  return SortOfType(PyType_Check(owner) ? reinterpret_cast<PyTypeObject*>(owner) : Py_TYPE(owner));
}

}  // namespace

std::optional<Reason> SortOf(PyObject* object) {
  LoadRandomOfNumPy();
  if (std::optional<Reason> sort = SortOfThing(KeyOf(object))) return sort;
  if (PyMethod_Check(object)) return SortOf(PyMethod_GET_FUNCTION(object));
  if (PyFunction_Check(object)) return SortOfThing(reinterpret_cast<PyFunctionObject*>(object)->func_globals);
  if (PyCFunction_Check(object)) {
    PyObject* const self = PyCFunction_GET_SELF(object);
    return self != nullptr ? SortOfOwner(self) : std::nullopt;
  }
  if (Py_TYPE(object) == &PyMethodDescr_Type || Py_TYPE(object) == &PyWrapperDescr_Type ||
      Py_TYPE(object) == &PyClassMethodDescr_Type || Py_TYPE(object) == &PyGetSetDescr_Type) {
    return SortOfType(PyDescr_TYPE(object));
  }
  return SortOfOwner(object);
}

void LoadSorts() {
  for (const char* name : {"print", "input", "open"}) AddThing(Loaded("builtins", {name}), Reason::input_output);
  AddType(Loaded("_io", {"_IOBase"}), Reason::input_output);
  AddThing(Loaded("builtins", {"__build_class__"}), Reason::class_statement);
  AddThing(Loaded("logging", {"__dict__"}), Reason::input_output);
  AddThing(Loaded("torch._C", {"TensorBase", "numpy"}), Reason::numpy_code);
  AddThing(Loaded("torch", {"from_numpy"}), Reason::numpy_code);
  for (const char* name : {"ndarray", "generic", "dtype", "ufunc"})
    AddType(Loaded("numpy", {name}), Reason::numpy_code);
  AddType(Loaded("numpy", {"sum", "__class__"}), Reason::numpy_code);  // of functions that arrays may override
  for (const char* name : {"numpy._core._multiarray_umath", "numpy.core._multiarray_umath"}) {
    AddThing(Loaded(name, {}), Reason::numpy_code);
  }
  AddThing(Loaded("torch.autograd.graph", {"_engine_run_backward"}), Reason::backward_runs);
  AddThing(Loaded("time", {}), Reason::another_value_each_time);
  AddType(Loaded("_random", {"Random"}), Reason::another_value_each_time);
}

}  // namespace frametap
