#include "guards/objects/array_view.h"

#include <algorithm>
#include <array>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "guards/ref.h"
#include "guards/throw_if_null.h"

namespace frametap {
namespace {

// Layout of NumPy's PyArrayObject_fields, which is part of its ABI.
struct ArrayObject {
  PyObject_HEAD char* data;
  int rank;
  Py_ssize_t* sizes;
  Py_ssize_t* strides;
  PyObject* base;
  PyObject* dtype;
  int flags;
};

constexpr const char* kDtypes[] = {"bool",   "int8",   "int16",  "int32",   "int64",   "uint8",
                                   "uint16", "uint32", "uint64", "float16", "float32", "float64"};
constexpr size_t kCount = std::size(kDtypes);

struct NumPy {
  PyTypeObject* array = nullptr;
  std::array<PyObject*, kCount> dtypes = {};       // the dtype of bool comes first
  std::array<PyTypeObject*, kCount> numbers = {};  // beside `dtypes`
};

NumPy& Known() {
  static NumPy numpy;
  return numpy;
}

const ArrayObject& LayoutOf(PyObject* array) { return *reinterpret_cast<const ArrayObject*>(array); }

Ref<> Attribute(const Ref<>& owner, const char* name) {
  Ref<> found = owner ? Ref<>::Steal(PyObject_GetAttrString(owner.get(), name)) : Ref<>();
  PyErr_Clear();
  return found;
}

PyTypeObject* TypeIn(const Ref<>& module, const char* name) {
  Ref<> found = Attribute(module, name);
  return found && PyType_Check(found.get()) ? reinterpret_cast<PyTypeObject*>(found.Release()) : nullptr;
}

// An array of known facts has them at the places where they are expected.
bool IsLaidOutAsExpected(const Ref<>& module, const NumPy& numpy) {
  const Ref<> made = Ref<>::Steal(PyObject_CallMethod(module.get(), "zeros", "((nn)O)", Py_ssize_t{3}, Py_ssize_t{5},
                                                      reinterpret_cast<PyObject*>(numpy.numbers[kCount - 1])));
  PyErr_Clear();
  if (!made || Py_TYPE(made.get()) != numpy.array) return false;
  const ArrayObject& array = LayoutOf(made.get());
  const auto item = static_cast<Py_ssize_t>(sizeof(double));
  return array.rank == 2 && array.sizes[0] == 3 && array.sizes[1] == 5 && array.strides[0] == 5 * item &&
         array.strides[1] == item && array.base == nullptr && array.dtype == numpy.dtypes[kCount - 1];
}

size_t IndexOfDtype(PyObject* object) {
  const auto& all = Known().dtypes;
  return static_cast<size_t>(std::find(all.begin(), all.end(), object) - all.begin());
}

}  // namespace

TypesOfNumPy types_of_numpy;

bool LoadArrays() {
  const Ref<> modules = Ref<>::New(PyImport_GetModuleDict());
  PyObject* const found = ItemOrError(modules.get(), "numpy");
  if (found == nullptr) {
    PyErr_Clear();
    return false;
  }
  const Ref<> module = Ref<>::New(found);
  NumPy numpy;
  numpy.array = TypeIn(module, "ndarray");
  const Ref<> make_dtype = Attribute(module, "dtype");
  if (numpy.array == nullptr || !make_dtype) return false;
  for (size_t i = 0; i < kCount; ++i) {
    Ref<> dtype = Ref<>::Steal(PyObject_CallFunction(make_dtype.get(), "s", kDtypes[i]));
    PyErr_Clear();
    numpy.numbers[i] = TypeIn(dtype, "type");
    numpy.dtypes[i] = dtype.Release();  // for ever
    if (numpy.dtypes[i] == nullptr || numpy.numbers[i] == nullptr) return false;
  }
  if (!IsLaidOutAsExpected(module, numpy)) return false;
  Known() = numpy;
  const auto [first, last] = std::minmax_element(numpy.numbers.begin(), numpy.numbers.end(), std::less<>());
  types_of_numpy = {std::min(*first, numpy.array, std::less<>()), std::max(*last, numpy.array, std::less<>())};
  return true;
}

bool IsArrayDtype(PyObject* object) { return object != nullptr && IndexOfDtype(object) < kCount; }

bool HasTypeOfArray(PyObject* object) {
  return Py_TYPE(object) == Known().array && IsArrayDtype(LayoutOf(object).dtype);
}

bool IsArrayNumberType(PyObject* object) {
  const auto& all = Known().numbers;
  return std::find(all.begin(), all.end(), reinterpret_cast<PyTypeObject*>(object)) != all.end();
}

bool HasTypeOfNumber(PyObject* object) {
  const auto& all = Known().numbers;
  return std::find(all.begin() + 1, all.end(), Py_TYPE(object)) != all.end();
}

int64_t ElementsOf(PyObject* array) {
  const ArrayObject& layout = LayoutOf(array);
  int64_t count = 1;
  for (int i = 0; i < layout.rank; ++i) count *= layout.sizes[i];
  return count;
}

bool HasBools(PyObject* array) { return IndexOfDtype(LayoutOf(array).dtype) == 0; }

ArrayFacts ArrayFacts::Of(PyObject* array) {
  const ArrayObject& layout = LayoutOf(array);
  ArrayFacts facts;
  facts.dtype = layout.dtype;
  facts.flags = layout.flags;
  facts.sizes.assign(layout.sizes, layout.sizes + layout.rank);
  facts.strides.assign(layout.strides, layout.strides + layout.rank);
  return facts;
}

bool ArrayFacts::Hold(PyObject* object) const {
  if (!IsArray(object)) return false;
  const ArrayObject& layout = LayoutOf(object);
  return layout.dtype == dtype && layout.flags == flags && static_cast<size_t>(layout.rank) == sizes.size() &&
         std::equal(sizes.begin(), sizes.end(), layout.sizes) &&
         std::equal(strides.begin(), strides.end(), layout.strides);
}

std::string ArrayFacts::Text() const {
  const size_t i = IndexOfDtype(dtype);
  std::string text = absl::StrCat(i < kCount ? kDtypes[i] : "?", "[", absl::StrJoin(sizes, ", "), "]{",
                                  absl::StrJoin(strides, ", "), "}");
  constexpr int kWriteable = 0x0400;  // NPY_ARRAY_WRITEABLE
  if ((flags & kWriteable) == 0) text += " read-only";
  return text;
}

}  // namespace frametap
