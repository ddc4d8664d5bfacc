// Watch: facts that an event invalidates, in place of a comparison. The only file of guards/ that changes with the
// Python version. 3.11 has version tags. Later versions have watchers, which can serve the same functions.
//   W1  A dict's version is unique in the process: equal dict and version mean equal content, even if the dict of that
//       address has died in between. So a remembered pair needs no reference.
//   W2  A type's version changes when an attribute of it or of a base changes. Zero means "cannot be watched".
//   W3  While DictEpoch() gives the same number, no dict has been changed, whichever it is.
#pragma once

#include <Python.h>

#include <cstdint>

namespace frametap {

inline const uint64_t* DictVersionPlace(PyObject* dict) {
  return &reinterpret_cast<PyDictObject*>(dict)->ma_version_tag;
}
inline uint64_t DictVersion(PyObject* dict) { return *DictVersionPlace(dict); }

// Where a dict keeps how many keys it has.
inline const Py_ssize_t* DictLengthPlace(PyObject* dict) { return &reinterpret_cast<PyDictObject*>(dict)->ma_used; }

// W3. A dict that is made counts as changed, too.
uint64_t DictEpoch();

// The first fields of CPython's _dictkeysobject. Its header is internal and does not compile beside torch's.
struct DictKeysPrefix {
  Py_ssize_t refcnt;
  uint8_t log2_size;
  uint8_t log2_index_bytes;
  uint8_t kind;  // 0 means any keys; 1 and 2 mean exact strings only

  static const DictKeysPrefix& Of(PyObject* dict) {
    return *reinterpret_cast<DictKeysPrefix*>(reinterpret_cast<PyDictObject*>(dict)->ma_keys);
  }
  // A build of Python with another layout must give slow look-ups, not wrong ones.
  static bool IsAsExpected();
};

// All keys are exact strings, so that a look-up of an exact string runs no code of a user. Constant time; false if
// unsure.
inline bool HasOnlyExactStrKeys(PyObject* dict) {
  static const bool is_as_expected = DictKeysPrefix::IsAsExpected();
  return is_as_expected && DictKeysPrefix::Of(dict).kind != 0;
}

// Asks for a version if the type has none.
uint32_t TypeVersion(PyTypeObject* type);

// Zero if it has none now.
inline uint32_t AssignedTypeVersion(const PyTypeObject* type) {
  return (type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG) != 0 ? type->tp_version_tag : 0;
}
inline bool TypeIsUnchanged(PyTypeObject* type, uint32_t version) {
  return version != 0 && type->tp_version_tag == version && (type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG) != 0;
}

}  // namespace frametap
