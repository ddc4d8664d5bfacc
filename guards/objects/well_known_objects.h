// The objects of torch and of the standard library that the recorder knows by identity. Loaded once, at import.
#pragma once

#include <Python.h>

namespace frametap {

struct KnownObjects {
  PyTypeObject* module;               // torch.nn.Module
  PyTypeObject* parameter;            // torch.nn.Parameter
  PyTypeObject* tensor;               // torch.Tensor
  PyTypeObject* tensor_base;          // torch._C.TensorBase
  PyTypeObject* size;                 // torch.Size
  PyTypeObject* partial;              // functools.partial
  PyTypeObject* cached_function;      // what functools.lru_cache makes
  PyTypeObject* ordered_dict;         // collections.OrderedDict
  PyTypeObject* enumeration;          // enum.Enum
  PyTypeObject* signature;            // inspect.Signature
  PyTypeObject* signature_part;       // inspect.Parameter
  PyTypeObject* weak_reference;       // weakref.ref
  PyTypeObject* method_wrapper;       // type of object().__str__
  PyTypeObject* tuple_getter;         // descriptor of a named tuple's fields
  PyObject* tuple_make;               // code of every named tuple's _make …
  PyObject* tuple_replace;            // … and _replace
  PyObject* module_getattr;           // torch.nn.Module.__getattr__
  PyObject* module_setattr;           // torch.nn.Module.__setattr__
  PyObject* module_call;              // torch.nn.Module.__call__
  PyCodeObject* module_call_code;     // code of torch.nn.Module._call_impl
  PyObject* module_globals;           // globals of torch.nn.modules.module
  PyCodeObject* tensor_hash_code;     // code of torch.Tensor.__hash__, which gives the id
  PyTypeObject* op_overload;          // torch._ops.OpOverload
  PyTypeObject* op_packet;            // torch._ops.OpOverloadPacket
  PyCFunction bound_by_torch;         // what pybind11 has all functions that it binds for torch begin with
  PyTypeObject* inference_mode;       // torch._C._InferenceMode
  PyTypeObject* function_base;        // torch._C._FunctionBase
  PyObject* function_apply;           // its descriptor `apply`
  PyObject* python_kernels;           // torch.library's set of the kernels that were registered from Python
  PyObject* op_definitions;           // weak references to all CustomOpDef of torch.library, by names of ops
  PyObject* finalizers;               // the dict of all weakref.finalize objects
  PyObject* copy_dispatch[2];         // copyreg.dispatch_table and copy._deepcopy_dispatch
  PyTypeObject* scalar_types[8];      // torch.dtype, device, layout, memory_format, …; null-terminated
  PyTypeObject* plain_types[32];      // C types whose data attributes are facts of the value; null-terminated
  const PyMethodDef* type_new;        // which the __new__ of all types in C shares
  PyTypeObject* union_type;           // of int | str
  PyTypeObject* cache_link;           // what a functools.lru_cache of limited size keeps its results in
  PyTypeObject* pybind_record;        // what torch's pybind11 binds its functions to
  PyTypeObject* locks[2];             // of threading.Lock() and RLock()
  PyObject* operation_parts[4];       // globals of Python code that is a part of operations in C
  PyTypeObject* reducible_types[24];  // which describe.cc makes again by their __reduce__; null-terminated
  PyObject* import;                   // builtins.__import__
};

const KnownObjects& Objects();
bool LoadKnownObjects();  // false with a Python exception set

// Whether Python code has made the class: its instances end by the function that CPython gives to all of these.
inline bool IsPythonClass(const PyTypeObject* type) { return type->tp_dealloc == Objects().module->tp_dealloc; }

}  // namespace frametap
