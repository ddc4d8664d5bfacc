#include "frame_eval/record/semantics/foreign_operators.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "frame_eval/interpreter/opcodes/names.h"
#include "frame_eval/record/callables/getters.h"
#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/objects/cached_properties.h"
#include "frame_eval/record/objects/class_references.h"
#include "frame_eval/record/objects/identity.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/objects/quiet.h"
#include "frame_eval/record/objects/set_check.h"
#include "frame_eval/record/semantics/descriptors.h"
#include "frame_eval/record/semantics/iterators.h"
#include "frame_eval/record/shared_breaks.h"
#include "frame_eval/record/trace/array_nodes.h"
#include "guards/cpython/deque_view.h"
#include "guards/cpython/watch.h"
#include "guards/objects/array_view.h"
#include "guards/objects/held_object.h"
#include "guards/objects/import.h"
#include "guards/objects/namespaces.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/well_known_objects.h"
#include "guards/throw_if_null.h"

namespace frametap {

void ThrowForeignOperator(PyObject* object);

void RefuseForeignKey(PyObject* key, int depth) {
  constexpr int kDeepest = 100;
  if (IsScalar(key) || IsTensor(key)) return;
  if (depth > kDeepest) throw TooDeep();
  if (IsOfNumPy(key)) throw Break{Reason::numpy_code, "an array or one of its numbers as a key"};
  RefuseForeignOperator(key);
  if (PySlice_Check(key)) {
    const auto* slice = reinterpret_cast<PySliceObject*>(key);
    for (PyObject* part : {slice->start, slice->stop, slice->step}) RefuseForeignOperator(part);
  } else if (PyTuple_Check(key) || PyList_Check(key)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(key); ++i) {
      RefuseForeignKey(PySequence_Fast_GET_ITEM(key, i), depth + 1);
    }
  }
}

// list[int], Box[float]: what a class is subscripted by is Python code, or code of a builtin class that only keeps it.
static bool IsKnownSubscript(PyTypeObject* type) {
  static PyObject* const name = InternedName("__class_getitem__");
  PyObject* const found = _PyType_Lookup(type, name);
  if (found == nullptr || Py_TYPE(found) == &PyClassMethodDescr_Type) return true;
  if (Py_TYPE(found) != &PyClassMethod_Type && Py_TYPE(found) != &PyStaticMethod_Type) return PyFunction_Check(found);
  const Ref<> function = WrappedFunction(found);
  return PyFunction_Check(function.get()) || function.get() == reinterpret_cast<PyObject*>(&Py_GenericAliasType);
}

// Types in C whose content has guards, where it is read by one of a few operators.
static bool IsReadableInC(PyObject* object) { return IsMappingProxy(object) || IsDeque(object); }

static bool ReadsContentOnly(Op op) {
  return op == Op::kSubscr || op == Op::kGetIter || op == Op::kTruth || op == Op::kListExtend;
}

static bool HasTensor(const Event& e) {
  return std::any_of(e.in, e.in + e.n, [](PyObject* operand) { return operand != nullptr && IsTensor(operand); });
}

const CallableRow* RowOfEnter(PyObject* manager) {
  PyObject* const enter = _PyType_Lookup(Py_TYPE(manager), interned.enter);
  if (enter == nullptr || Py_TYPE(enter) != &PyMethodDescr_Type) return nullptr;
  const CallableRow* const row = FindCallable(enter);
  return row != nullptr && row->special != nullptr ? row : nullptr;
}

// An operator on an object of an extension type that existed before: what it reads cannot be guarded.
void RefuseForeign(Trace& trace, const Event& e) {
  if (e.op == Op::kBeforeWith && IsLockOfOwnProperty(trace, trace.frames.innermost(), e.in[0])) return;
  if (e.op == Op::kBeforeWith && RowOfEnter(e.in[0]) != nullptr) return;
  if (e.op == Op::kGetIter && (IsMetIterator(trace, e.in[0]) || PyGen_CheckExact(e.in[0]))) return;
  for (int i = 0; i < e.n; ++i) {
    if (e.in[i] == nullptr || IsScalar(e.in[i]) || IsTensor(e.in[i])) continue;
    const bool is_of_tensor = e.op == Op::kBinary || e.op == Op::kCompare || e.op == Op::kStoreSubscr;
    if (is_of_tensor && IsArrayNumber(e.in[i]) && HasTensor(e)) continue;  // LeaveOpen
    const bool is_kept = e.op == Op::kStoreSubscr && (PyDict_CheckExact(e.in[1]) || PyList_CheckExact(e.in[1]));
    if (is_kept && i == 0 && IsOfNumPy(e.in[i])) continue;
    const bool is_read = IsReadableInC(e.in[i]);
    const bool may_read = ReadsContentOnly(e.op) || (e.op == Op::kContains && i == 1 && IsMappingProxy(e.in[i]));
    if (is_read ? !may_read && SourceOf(trace, e.in[i]).valid() : IsForeign(trace, e.in[i])) {
      const PyTypeObject* const type = Py_TYPE(e.in[i]);
      for (const PyTypeObject* lock : Objects().locks) {
        if (type == lock) throw Break{Reason::done_once, "a lock is taken"};
      }
      const char* what = e.op == Op::kBeforeWith ? "a with block of " : "an operator on ";
      throw Break{SortOf(e.in[i]).value_or(Reason::unknown_operation), std::string(what) + type->tp_name};
    }
  }
  switch (e.op) {
    case Op::kSubscr:
      if (PyType_Check(e.in[0]) && !IsKnownSubscript(reinterpret_cast<PyTypeObject*>(e.in[0]))) {
        ThrowForeignOperator(e.in[0]);
      }
      return RefuseForeignKey(e.in[1]);
    case Op::kStoreSubscr:
      return RefuseForeignKey(e.in[2]);
    case Op::kDeleteSubscr:
      return RefuseForeignKey(e.in[1]);
    case Op::kContains:
      return RefuseForeignKey(e.in[0]);
    default:
      return;
  }
}

// The names that C code looks up in the class of an object.
static const std::vector<PyObject*>& OperatorNames() {
  static const std::vector<PyObject*> names = [] {
    std::vector<PyObject*> all;
    for (const char* name : {"bool",    "len",     "length_hint", "contains", "iter",  "next",   "reversed", "getitem",
                             "setitem", "delitem", "missing",     "eq",       "ne",    "lt",     "le",       "gt",
                             "ge",      "hash",    "neg",         "pos",      "abs",   "invert", "int",      "float",
                             "complex", "index",   "bytes",       "round",    "trunc", "floor",  "ceil",     "str",
                             "repr",    "format",  "enter",       "exit",     "get",   "set",    "delete"}) {
      all.push_back(InternedName(absl::StrCat("__", name, "__").c_str()));
    }
    for (const char* name : {"__init__", "__instancecheck__", "__subclasscheck__"}) all.push_back(InternedName(name));
    for (const char* name : {"add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "divmod", "pow", "lshift",
                             "rshift", "and", "xor", "or"}) {
      for (const char* side : {"", "r", "i"}) all.push_back(InternedName(absl::StrCat("__", side, name, "__").c_str()));
    }
    return all;
  }();
  return names;
}

// Python code comes as a frame. A slot inherited from a base in C is handled as the slot of the base. For a number or
// string the result follows from the value, under any name. (pybind11's classes are extension types: IsForeign.)
static bool IsKnownOperator(PyTypeObject* type, PyObject* name, PyObject* found) {
  if (found == nullptr || found == Py_None || PyFunction_Check(found) || PyInstanceMethod_Check(found)) return true;
  if (Py_TYPE(found) != &PyWrapperDescr_Type && Py_TYPE(found) != &PyMethodDescr_Type) return false;
  constexpr unsigned long kValues = Py_TPFLAGS_LONG_SUBCLASS | Py_TPFLAGS_UNICODE_SUBCLASS | Py_TPFLAGS_BYTES_SUBCLASS;
  const bool is_value = (type->tp_flags & kValues) != 0 || PyType_IsSubtype(type, &PyFloat_Type) != 0;
  return PyType_IsSubtype(type, PyDescr_TYPE(found)) != 0 && (PyDescr_NAME(found) == name || is_value);
}

bool HasForeignOperator(PyTypeObject* type) {
  struct Answer {
    PyTypeObject* type = nullptr;
    uint32_t version = 0;  // no other type has ever had it
    bool has_one = false;
  };
  static std::array<Answer, 256> answers;
  if (!HasPlainNames(type)) return true;
  const uint32_t version = TypeVersion(type);
  Answer& answer = answers[(reinterpret_cast<uintptr_t>(type) >> 5) % answers.size()];
  if (answer.type == type && answer.version == version && version != 0) return answer.has_one;
  const auto& names = OperatorNames();
  const bool is_tensor = PyType_IsSubtype(type, Objects().tensor_base) != 0;
  const bool has_one = !is_tensor && std::any_of(names.begin(), names.end(), [type](PyObject* name) {
    return !IsKnownOperator(type, name, _PyType_Lookup(type, name));
  });
  answer = {type, version, has_one};
  return has_one;
}

void ThrowForeignOperator(PyObject* object) {
  throw Break{Reason::unknown_operation, std::string("an operator in C of ") + Py_TYPE(object)->tp_name};
}

bool IsOfPythonClass(PyObject* object) {
  for (const PyTypeObject* type = Py_TYPE(object); type != &PyBaseObject_Type; type = type->tp_base) {
    if (type == nullptr || !IsPythonClass(type)) return false;
  }
  return true;
}

bool IsNativeMetaclass(PyTypeObject* meta) {
  static PyTypeObject* const of_torch = [] {
    const ErrScope keep;
    const Ref<> module = ImportModule("torch._C");
    const Ref<> any = module ? Ref<>::Steal(PyObject_GetAttrString(module.get(), "_SDPBackend")) : Ref<>();
    PyErr_Clear();
    return any && PyType_Check(any.get()) ? Py_TYPE(any.get()) : nullptr;  // it lives as long as torch
  }();
  return meta == of_torch && meta != &PyType_Type;
}

bool IsNativeEnum(PyTypeObject* type) {
  static PyObject* const entries = InternedName("__entries");
  return IsNativeMetaclass(Py_TYPE(type)) && ItemQuietly(type->tp_dict, entries) != nullptr;
}

bool IsForeign(Trace& trace, PyObject* object) {
  if (HasForeignOperator(object) || IsArrayOperand(trace, object)) return true;
  if (IsNamespace(object)) return true;  // its equality and repr read it all
  ObjectRecord* known = trace.objects.Find(object);
  if (known == nullptr || known->state != ObjectRecord::State::kSource) return false;
  if (PyTuple_Check(object) || PyList_Check(object) || PyDict_Check(object) || IsAnySet(object) ||
      IsIdentityKind(object) || PyRange_Check(object) || PySlice_Check(object)) {
    return false;
  }
  if (known->pinned && IsReferenceToClass(object)) return false;
  if (known->pinned && IsNativeEnum(Py_TYPE(object))) return false;
  return !IsOfPythonClass(object) && !IsReadableInC(object) && !IsGetter(object);
}

}  // namespace frametap
