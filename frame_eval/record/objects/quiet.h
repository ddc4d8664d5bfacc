// Reads and effects that run no code of the program's.
//   Y1  A look-up in a dict compares keys of built-in types, and others by identity. If a key's own __eq__ or __hash__
//       would decide, the segment ends before the recorder calls it (guards/objects/dict_read.h).
//   Y2  A class may be looked into where all names in it and in its bases are plain strings and its bases are known. A class
//       that is being made may have none yet.
//   Y3  A replay repeats an effect through C code. Some effects call the hash, the index or the equality of a key or an
//       element. The recording has seen the answer: a replay must not call them again.
#pragma once

#include <Python.h>

#include <array>
#include <string>
#include <vector>

#include "guards/objects/dict_read.h"
#include "guards/ref.h"
#include "ir/segment/segment_ir.h"

namespace frametap {

// The value under a key (of any type), borrowed; null if there is none. Throws Break where Y1 does not hold.
PyObject* ItemUnderAnyKey(PyObject* dict, PyObject* key);
inline PyObject* ItemQuietly(PyObject* dict, PyObject* key) {
  return IsReadByName(dict, key) ? StrDictGet(dict, key) : ItemUnderAnyKey(dict, key);
}

// Y2, for a class made by Python code; others never change.
bool HasPlainNamesOfPython(PyTypeObject* type);
// A class for which that is known, as long as the class has the version.
struct PlainClass {
  PyTypeObject* type = nullptr;
  uint32_t version = 0;  // no other type has ever had it

  static PlainClass& At(PyTypeObject* type) { return known[(reinterpret_cast<uintptr_t>(type) >> 5) % known.size()]; }
  static std::array<PlainClass, 256> known;
};
inline bool HasPlainNames(PyTypeObject* type) {
  if ((type->tp_flags & Py_TPFLAGS_HEAPTYPE) == 0) return true;
  const PlainClass& known = PlainClass::At(type);
  return (known.type == type && TypeIsUnchanged(type, known.version)) || HasPlainNamesOfPython(type);
}
[[noreturn]] void ThrowOddNames(PyTypeObject* type);
inline void RefuseOddNames(PyTypeObject* type) {
  if (!HasPlainNames(type)) [[unlikely]]
    ThrowOddNames(type);
}

// The bounds of a slice that are ints, or not given. False for another object, and where an __index__ would say.
bool UnpackQuietly(PyObject* slice, Py_ssize_t* start, Py_ssize_t* stop, Py_ssize_t* step);

// Y3. Throws Break for an effect that a replay cannot repeat quietly.
void RefuseLoudEffect(Effect::Kind kind, PyObject* target, const std::string& name,
                      const std::vector<PyObject*>& values);

// Who says what the hash of a key is.
enum class HashBy : uint8_t {
  kC,     // C code: it can be asked again
  kCode,  // Python code: the recording has asked it
  kBoth,  // a tuple of such keys and of others whose hash is their address
};
HashBy HashOf(PyObject* key);

// The hashes in a dict or set, a tuple in its order, if Python code computed one of them. Empty if none did. None stands
// for a hash that is computed again, because it may be the address of another object then.
// Throws Break if putting the keys into a table again would call their code to compare two of them.
Ref<> HashesByCode(PyObject* table);

// dict.copy that asks no key whether it is another. Throws Break.
Ref<> CopyDict(PyObject* dict);

}  // namespace frametap
