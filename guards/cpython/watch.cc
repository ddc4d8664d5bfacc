#include "guards/cpython/watch.h"

#include "guards/ref.h"
#include "guards/throw_if_null.h"

static_assert(PY_MAJOR_VERSION == 3 && PY_MINOR_VERSION == 11,
              "this file is for the version tags and dict keys of Python 3.11");

namespace frametap {

bool DictKeysPrefix::IsAsExpected() {
  Ref<> strings = Ref<>::Steal(PyDict_New());
  Ref<> numbers = Ref<>::Steal(PyDict_New());
  Ref<> name = Ref<>::Steal(PyUnicode_FromString("x"));
  Ref<> number = Ref<>::Steal(PyLong_FromLong(1));
  if (!strings || !numbers || !name || !number || PyDict_SetItem(strings.get(), name.get(), Py_None) < 0 ||
      PyDict_SetItem(numbers.get(), number.get(), Py_None) < 0) {
    PyErr_Clear();
    return false;
  }
  return Of(strings.get()).kind == 1 && Of(numbers.get()).kind == 0;
}

// 3.11 numbers all changes of dicts in one row. A change that is made here gets the next number, unless there were others.
uint64_t DictEpoch() {
  static PyObject* const own = PyDict_New();
  static PyObject* const key = InternedName("last");
  static PyObject* held = Py_False;  // not counted: these two are for ever
  static uint64_t epoch = 0, last = 0;
  held = held == Py_True ? Py_False : Py_True;  // the object that is there already would change nothing
  if (own == nullptr || PyDict_SetItem(own, key, held) < 0) {
    PyErr_Clear();
    return ++epoch;
  }
  const uint64_t now = DictVersion(own);
  if (now != last + 1) ++epoch;
  last = now;
  return epoch;
}

uint32_t TypeVersion(PyTypeObject* type) {
  if ((type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG) == 0) {
    static PyObject* const name = InternedName("__init__");  // any name: a look-up assigns the version
    _PyType_Lookup(type, name);
  }
  return AssignedTypeVersion(type);
}

}  // namespace frametap
