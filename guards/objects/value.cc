#include "guards/objects/value.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "guards/objects/torch_tensor.h"
#include "guards/ref.h"
#include "guards/throw_if_null.h"
#include "ir/graph/literal.h"

namespace frametap {

namespace {

constexpr int kMaxDepth = 8;
constexpr size_t kMaxText = 60;

bool IsTorchConstant(PyObject* object) {
  c10::IValue unused;
  return TorchConstantOf(object, &unused);
}

// torch.Size and other plain subclasses of tuple. Structseqs and named tuples have the items as their only content
// too. A Python subclass may carry a __dict__, so only torch.Size (a static type of torch) counts.
bool IsTupleLike(PyObject* object) { return PyTuple_CheckExact(object) || IsTorchSize(object); }

// Layout of CPython's rangeobject, which rangeobject.c keeps to itself.
struct Range {
  PyObject_HEAD PyObject *start, *stop, *step, *length;
};

bool IsPlain(PyObject* o, int depth, bool with_slices = true) {
  if (PyUnicode_CheckExact(o) || o == Py_None || PyBool_Check(o) || PyLong_CheckExact(o) || PyFloat_CheckExact(o) ||
      PyBytes_CheckExact(o) || o == Py_Ellipsis || PyComplex_CheckExact(o)) {
    return true;
  }
  if (depth == 0) return false;
  if (IsTupleLike(o)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); ++i) {
      if (!IsPlain(PyTuple_GET_ITEM(o, i), depth - 1, with_slices)) return false;
    }
    return true;
  }
  if (PySlice_Check(o)) {
    if (!with_slices) return false;
    auto* s = reinterpret_cast<PySliceObject*>(o);
    return IsPlain(s->start, depth - 1) && IsPlain(s->stop, depth - 1) && IsPlain(s->step, depth - 1);
  }
  if (PyRange_Check(o)) return true;  // its numbers are exact ints
  if (PyFrozenSet_CheckExact(o)) {
    Py_ssize_t at = 0;
    PyObject* item;
    Py_hash_t hash;
    while (_PySet_NextEntry(o, &at, &item, &hash)) {
      if (!IsPlain(item, depth - 1, with_slices)) return false;
    }
    return true;
  }
  return IsTorchConstant(o);
}

bool SameInt(PyObject* a, PyObject* b) {
  int overflow_a = 0, overflow_b = 0;
  const long long x = PyLong_AsLongLongAndOverflow(a, &overflow_a);
  const long long y = PyLong_AsLongLongAndOverflow(b, &overflow_b);
  if (overflow_a != overflow_b) return false;
  return overflow_a == 0 ? x == y : Must(PyObject_RichCompareBool(a, b, Py_EQ));
}

bool SameBits(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

bool SameStr(PyObject* a, PyObject* b) {
  if (PyUnicode_GET_LENGTH(a) != PyUnicode_GET_LENGTH(b) || PyUnicode_KIND(a) != PyUnicode_KIND(b)) return false;
  return std::memcmp(PyUnicode_DATA(a), PyUnicode_DATA(b), PyUnicode_GET_LENGTH(a) * PyUnicode_KIND(a)) == 0;
}

bool SameTorchConstant(PyObject* a, PyObject* b) {
  c10::IValue x, y;
  if (!TorchConstantOf(a, &x) || !TorchConstantOf(b, &y)) return false;
  if (x.isInt() && y.isInt()) return x.toInt() == y.toInt();
  return x.isDevice() && y.isDevice() && x.toDevice() == y.toDevice();
}

bool Same(PyObject* a, PyObject* b, int depth) {
  if (a == b) return true;
  PyTypeObject* type = Py_TYPE(a);
  if (type != Py_TYPE(b)) return false;
  if (type == &PyLong_Type) return SameInt(a, b);
  if (type == &PyFloat_Type) return SameBits(PyFloat_AS_DOUBLE(a), PyFloat_AS_DOUBLE(b));
  if (type == &PyUnicode_Type) return SameStr(a, b);
  if (type == &PyBytes_Type) {
    return PyBytes_GET_SIZE(a) == PyBytes_GET_SIZE(b) &&
           std::memcmp(PyBytes_AS_STRING(a), PyBytes_AS_STRING(b), PyBytes_GET_SIZE(a)) == 0;
  }
  if (type == &PyComplex_Type) {
    const Py_complex x = PyComplex_AsCComplex(a), y = PyComplex_AsCComplex(b);
    return SameBits(x.real, y.real) && SameBits(x.imag, y.imag);
  }
  if (depth == 0) return false;
  if (IsTupleLike(a)) {
    const Py_ssize_t n = PyTuple_GET_SIZE(a);
    if (n != PyTuple_GET_SIZE(b)) return false;
    for (Py_ssize_t i = 0; i < n; ++i) {
      if (!Same(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i), depth - 1)) return false;
    }
    return true;
  }
  if (PySlice_Check(a)) {
    auto *x = reinterpret_cast<PySliceObject*>(a), *y = reinterpret_cast<PySliceObject*>(b);
    return Same(x->start, y->start, depth - 1) && Same(x->stop, y->stop, depth - 1) &&
           Same(x->step, y->step, depth - 1);
  }
  if (PyRange_Check(a)) {
    auto *x = reinterpret_cast<Range*>(a), *y = reinterpret_cast<Range*>(b);
    return SameInt(x->start, y->start) && SameInt(x->stop, y->stop) && SameInt(x->step, y->step);
  }
  if (PyFrozenSet_CheckExact(a)) {
    if (PySet_GET_SIZE(a) != PySet_GET_SIZE(b)) return false;
    Py_ssize_t at_a = 0, at_b = 0;
    PyObject *item_a, *item_b;
    Py_hash_t hash;
    while (_PySet_NextEntry(a, &at_a, &item_a, &hash)) {
      if (!_PySet_NextEntry(b, &at_b, &item_b, &hash) || !Same(item_a, item_b, depth - 1)) return false;
    }
    return true;
  }
  return SameTorchConstant(a, b);
}

// An attribute that CPython keeps in a type's own dict, without a look-up that could run code.
PyObject* OwnStr(PyTypeObject* type, const char* name) {
  const ErrScope keep;
  PyObject* found = type->tp_dict != nullptr ? ItemOrError(type->tp_dict, name) : nullptr;
  return found != nullptr && PyUnicode_CheckExact(found) ? found : nullptr;
}

std::string Utf8(PyObject* str) {
  const char* text = PyUnicode_AsUTF8(str);
  if (text != nullptr) return text;
  PyErr_Clear();  // lone surrogates
  Ref<> ascii = Ref<>::Steal(PyObject_ASCII(str));
  text = ascii ? PyUnicode_AsUTF8(ascii.get()) : nullptr;
  return text != nullptr ? text : "?";
}

std::string Qualified(PyObject* module, std::string name) {
  if (module == nullptr || !PyUnicode_CheckExact(module)) return name;
  const std::string prefix = Utf8(module);
  return prefix == "__main__" || prefix == "builtins" ? name : absl::StrCat(prefix, ".", name);
}

std::string WithoutLocals(std::string qualname) {
  static constexpr char kMark[] = "<locals>.";
  const size_t at = qualname.rfind(kMark);
  return at == std::string::npos ? qualname : qualname.substr(at + sizeof kMark - 1);
}

std::string Text(PyObject* o) {
  if (PyUnicode_CheckExact(o) && PyUnicode_IS_COMPACT_ASCII(o)) {  // most are names
    const std::string word = Utf8(o);
    if (word.size() + 2 <= kMaxText && IsPathWord(word)) return absl::StrCat("'", word, "'");
  }
  if (IsPlain(o, kMaxDepth)) {
    Ref<> repr = Ref<>::Steal(PyObject_Repr(o));
    if (!repr) return "?";
    return Shortened(Utf8(repr.get()), kMaxText);
  }
  if (PyFunction_Check(o)) {
    auto* f = reinterpret_cast<PyFunctionObject*>(o);
    return Qualified(f->func_module, WithoutLocals(Utf8(f->func_qualname)));
  }
  if (PyCFunction_Check(o)) {
    auto* f = reinterpret_cast<PyCFunctionObject*>(o);
    if (f->m_module != nullptr && PyUnicode_CheckExact(f->m_module)) return Qualified(f->m_module, f->m_ml->ml_name);
    if (f->m_self != nullptr && PyModule_Check(f->m_self)) return absl::StrCat(Text(f->m_self), ".", f->m_ml->ml_name);
    return f->m_ml->ml_name;
  }
  if (PyType_Check(o)) {
    auto* type = reinterpret_cast<PyTypeObject*>(o);
    return Qualified((type->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0 ? OwnStr(type, "__module__") : nullptr,
                     TypeName(type));
  }
  if (PyModule_Check(o)) {
    const char* name = PyModule_GetName(o);
    return name != nullptr ? name : "module";
  }
  if (PyMethod_Check(o)) return absl::StrCat("method ", Text(PyMethod_GET_FUNCTION(o)));
  return absl::StrCat(TypeName(Py_TYPE(o)), " object");
}

}  // namespace

bool IsPlainValue(PyObject* object) { return IsPlain(object, kMaxDepth); }

bool IsPlainHashable(PyObject* object) { return IsPlain(object, kMaxDepth, false); }

bool HoldsNan(PyObject* object) {
  if (PyFloat_CheckExact(object)) return std::isnan(PyFloat_AS_DOUBLE(object));
  if (PyComplex_CheckExact(object)) {
    const Py_complex number = PyComplex_AsCComplex(object);
    return std::isnan(number.real) || std::isnan(number.imag);
  }
  Py_ssize_t at = 0;
  if (PyFrozenSet_CheckExact(object)) {
    PyObject* element;
    Py_hash_t hash;
    while (_PySet_NextEntry(object, &at, &element, &hash)) {
      if (HoldsNan(element)) return true;
    }
    return false;
  }
  if (!IsTupleLike(object)) return false;
  while (at < PyTuple_GET_SIZE(object) && !HoldsNan(PyTuple_GET_ITEM(object, at))) ++at;
  return at < PyTuple_GET_SIZE(object);
}

bool SameValue(PyObject* a, PyObject* b) { return Same(a, b, kMaxDepth); }

Found SetHas(PyObject* set, PyObject* item, Py_hash_t item_hash) {
  Py_ssize_t at = 0;
  PyObject* element;
  Py_hash_t hash;
  Found answer = Found::kNo;
  while (_PySet_NextEntry(set, &at, &element, &hash)) {
    if (hash != item_hash) continue;
    Found same = SameKey(element, item);
    if (same == Found::kDoubt && IsPlainValue(element) && IsPlainValue(item)) {  // such as devices
      const int equal = PyObject_RichCompareBool(element, item, Py_EQ);
      if (equal < 0) PyErr_Clear();
      same = equal < 0 ? Found::kDoubt : equal == 1 ? Found::kYes : Found::kNo;
    }
    // The element in doubt may be asked before the one that is the item.
    if (same == Found::kDoubt) return Found::kDoubt;
    if (same == Found::kYes) answer = Found::kYes;
  }
  return answer;
}

std::string Shortened(std::string text, size_t limit) {
  if (text.size() <= limit) return text;
  size_t end = limit - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // inside of a character
  return text.replace(end, std::string::npos, "...");
}

std::string ShortRepr(PyObject* object) {
  if (object == nullptr) return "nothing";
  ErrScope keep;
  return Text(object);
}

std::string TypeName(PyTypeObject* type) {
  const std::string name = type->tp_name;
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? name : name.substr(dot + 1);
}

}  // namespace frametap
