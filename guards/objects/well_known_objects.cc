#include "guards/objects/well_known_objects.h"

#include <iterator>

#include "guards/cpython/iterator_view.h"
#include "guards/objects/import.h"
#include "guards/ref.h"
#include "guards/throw_if_null.h"

namespace frametap {
namespace {

KnownObjects objects;

// "torch.nn.Module.__call__": the longest importable prefix, then attributes. A new reference that is kept for ever.
PyObject* Load(const char* module, std::initializer_list<const char*> path) {
  Ref<> object = ImportModule(module);
  for (const char* name : path) {
    if (!object) return nullptr;
    object = Ref<>::Steal(PyObject_GetAttrString(object.get(), name));
  }
  return object.Release();
}

// Returns the value of an expression, with the names of some modules, or null with an exception. A new reference that
// is kept for ever.
PyObject* Evaluated(const char* text) {
  const Ref<> names = Ref<>::Steal(PyDict_New());
  bool ok = names && PyDict_SetItemString(names.get(), "__builtins__", PyEval_GetBuiltins()) == 0;
  for (const char* name : {"functools", "gc", "itertools", "operator", "threading", "torch", "types"}) {
    const Ref<> module = ok ? ImportModule(name) : Ref<>();
    ok = module && PyDict_SetItemString(names.get(), name, module.get()) == 0;
  }
  return ok ? PyRun_String(text, Py_eval_input, names.get(), names.get()) : nullptr;
}

// Types that no module has a name for: the types of the values of a list of expressions. Null-terminated.
template <size_t size>
bool LoadTypesOf(const char* list, PyTypeObject* (&types)[size]) {
  const Ref<> objects = Ref<>::Steal(Evaluated(list));
  if (!objects) return false;
  const auto n = static_cast<size_t>(PyList_GET_SIZE(objects.get()));
  for (size_t i = 0; i < n && i < size; ++i) {
    types[i] = Ref<PyTypeObject>::New(Py_TYPE(PyList_GET_ITEM(objects.get(), static_cast<Py_ssize_t>(i)))).Release();
  }
  return true;
}

}  // namespace

const KnownObjects& Objects() { return objects; }

bool LoadKnownObjects() {
  auto type = [](const char* module, std::initializer_list<const char*> path) {
    return reinterpret_cast<PyTypeObject*>(Load(module, path));
  };
  objects.module = type("torch.nn", {"Module"});
  objects.parameter = type("torch.nn", {"Parameter"});
  objects.tensor = type("torch", {"Tensor"});
  objects.tensor_base = type("torch._C", {"TensorBase"});
  objects.size = type("torch", {"Size"});
  objects.partial = type("functools", {"partial"});
  objects.cached_function = type("functools", {"_lru_cache_wrapper"});
  objects.ordered_dict = type("collections", {"OrderedDict"});
  objects.enumeration = type("enum", {"Enum"});
  objects.signature = type("inspect", {"Signature"});
  objects.signature_part = type("inspect", {"Parameter"});
  objects.weak_reference = type("weakref", {"ReferenceType"});
  objects.tuple_getter = type("collections", {"_tuplegetter"});
  objects.tuple_make = Load("inspect", {"FullArgSpec", "_make", "__func__", "__code__"});
  objects.tuple_replace = Load("inspect", {"FullArgSpec", "_replace", "__code__"});
  objects.union_type = type("types", {"UnionType"});
  const Ref<> make = Ref<>::Steal(Load("builtins", {"object", "__new__"}));
  if (make) objects.type_new = reinterpret_cast<PyCFunctionObject*>(make.get())->m_ml;
  PyTypeObject* others[5] = {};
  const bool loaded =
      LoadTypesOf(
          "[iter([]), reversed([]), iter(()), iter(range(0)), enumerate(()), zip(), map(len, ()),"
          " filter(len, ()), reversed(()), iter(''), iter('\\u0416'), iter({}.keys()), iter({}.values()),"
          " iter({}.items()), itertools.chain(), itertools.count(), itertools.repeat(0),"
          " operator.attrgetter('a'), operator.itemgetter(0), operator.methodcaller('a')]",
          objects.reducible_types) &&
      LoadTypesOf(
          "[threading.Lock(), threading.RLock(), torch._C._get_tracing_state.__self__,"
          " *(lambda f: f(()) or [link for cache in gc.get_referents(f)"
          "  if type(cache) is dict and cache is not f.__dict__ for link in cache.values()])"
          "(functools.lru_cache(maxsize=1)(len))]",
          others);
  if (!loaded) return false;
  objects.locks[0] = others[0];
  objects.locks[1] = others[1];
  objects.pybind_record = others[2];
  objects.cache_link = others[3];
  const char* parts[] = {"abc", "collections.abc", "torch.nn.modules.module", "torch._tensor"};
  for (size_t i = 0; i < std::size(parts); ++i) objects.operation_parts[i] = Load(parts[i], {"__dict__"});
  objects.import = Load("builtins", {"__import__"});
  objects.module_getattr = Load("torch.nn", {"Module", "__getattr__"});
  objects.module_setattr = Load("torch.nn", {"Module", "__setattr__"});
  objects.module_call = Load("torch.nn", {"Module", "__call__"});
  Ref<> code = Ref<>::Steal(Load("torch.nn", {"Module", "_call_impl", "__code__"}));
  objects.module_call_code = reinterpret_cast<PyCodeObject*>(code.Release());
  Ref<> hash_code = Ref<>::Steal(Load("torch", {"Tensor", "__hash__", "__code__"}));
  objects.tensor_hash_code = reinterpret_cast<PyCodeObject*>(hash_code.Release());
  objects.function_base = type("torch._C", {"_FunctionBase"});
  if (objects.function_base == nullptr) return false;
  objects.function_apply = Py_XNewRef(ItemOrError(objects.function_base->tp_dict, "apply"));
  objects.op_overload = type("torch._ops", {"OpOverload"});
  objects.op_packet = type("torch._ops", {"OpOverloadPacket"});
  objects.inference_mode = type("torch._C", {"_InferenceMode"});
  Ref<> bound = Ref<>::Steal(Load("torch._C", {"_jit_get_operation"}));
  objects.bound_by_torch = bound && PyCFunction_Check(bound.get()) ? PyCFunction_GET_FUNCTION(bound.get()) : nullptr;
  objects.module_globals = Load("torch.nn.modules.module", {"__dict__"});
  objects.python_kernels = Load("torch.library", {"_impls"});
  objects.op_definitions = Load("torch._library.custom_ops", {"OPDEFS", "data"});
  objects.finalizers = Load("weakref", {"finalize", "_registry"});
  objects.copy_dispatch[0] = Load("copyreg", {"dispatch_table"});
  objects.copy_dispatch[1] = Load("copy", {"_deepcopy_dispatch"});
  Ref<> text = Ref<>::Steal(PyObject_GetAttrString(Py_None, "__str__"));
  objects.method_wrapper = text ? Py_TYPE(text.get()) : nullptr;
  Py_XINCREF(reinterpret_cast<PyObject*>(objects.method_wrapper));
  const char* scalars[] = {"dtype", "device", "layout", "memory_format", "qscheme"};
  int n = 0;
  for (const char* name : scalars) objects.scalar_types[n++] = type("torch", {name});
  int p = 0;
  objects.plain_types[p++] = &PySlice_Type;
  objects.plain_types[p++] = &PyRange_Type;
  objects.plain_types[p++] = &PyComplex_Type;
  objects.plain_types[p++] = &PyLong_Type;
  objects.plain_types[p++] = &PyFloat_Type;
  objects.plain_types[p++] = &PyCode_Type;
  objects.plain_types[p++] = &PyProperty_Type;
  objects.plain_types[p++] = &PyMethod_Type;
  objects.plain_types[p++] = &PyCFunction_Type;
  objects.plain_types[p++] = &PyMethodDescr_Type;
  objects.plain_types[p++] = type("torch", {"finfo"});
  objects.plain_types[p++] = type("torch", {"iinfo"});
  objects.plain_types[p++] = type("torch", {"device"});
  objects.plain_types[p++] = type("torch", {"dtype"});
  objects.plain_types[p++] = type("types", {"MappingProxyType"});
  TryIterators();
  return PyErr_Occurred() == nullptr;
}

}  // namespace frametap
