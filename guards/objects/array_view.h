// ArrayView: NumPy's arrays, numbers and dtypes, known by the objects of the imported module; facts of arrays, read from
// memory without code of NumPy. Without NumPy, or if an array is laid out in another way than expected, no object is an
// array.
//   V1  An array is an instance of numpy.ndarray itself, and its dtype is one of NumPy's own that torch has, too.
//   V2  All functions are safe on any object. They run no code, raise nothing and allocate only where they return vectors.
#pragma once

#include <Python.h>

#include <cstdint>
#include <string>
#include <vector>

namespace frametap {

bool LoadArrays();  // once, at import; false if there are no arrays

// The part of memory in which the types of arrays and of their numbers lie. A recording asks nearly every object whether it
// is NumPy's, and nearly every type lies elsewhere.
struct TypesOfNumPy {
  const PyTypeObject *first = nullptr, *last = nullptr;
  bool MayHold(PyObject* object) const {
    const PyTypeObject* const type = Py_TYPE(object);
    return last != nullptr && first <= type && type <= last;
  }
};
extern TypesOfNumPy types_of_numpy;

bool HasTypeOfArray(PyObject* object);
bool HasTypeOfNumber(PyObject* object);
inline bool IsArray(PyObject* object) { return types_of_numpy.MayHold(object) && HasTypeOfArray(object); }
// Returns whether it is a number of such a dtype, except numpy.bool, of which there are two objects.
inline bool IsArrayNumber(PyObject* object) { return types_of_numpy.MayHold(object) && HasTypeOfNumber(object); }
bool IsArrayDtype(PyObject* object);       // one of these dtypes
bool IsArrayNumberType(PyObject* object);  // the type of an element of theirs, numpy.bool included
inline bool IsOfNumPy(PyObject* object) { return IsArray(object) || IsArrayNumber(object); }
int64_t ElementsOf(PyObject* array);  // requires IsArray
bool HasBools(PyObject* array);       // its dtype is bool

// All that decides how an array is laid out and what may be done to it: everything except its elements and its base.
struct ArrayFacts {
  PyObject* dtype = nullptr;  // borrowed; never freed
  int flags = 0;
  std::vector<int64_t> sizes, strides;

  static ArrayFacts Of(PyObject* array);  // requires IsArray
  bool Hold(PyObject* object) const;
  std::string Text() const;  // "float32[2, 3]{12, 4}"
};

}  // namespace frametap
