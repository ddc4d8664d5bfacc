// Value: equality of immutable values without running code of a user.
//   E1  Equal means: same exact type and same value; floats bit by bit, containers element by element in iteration
//       order.
//   E2  An object of any other type equals only itself.
#pragma once

#include <Python.h>

#include <string>

#include "guards/objects/dict_read.h"

namespace frametap {

// None, Ellipsis, bool, int, float, complex, str, bytes, torch dtype, device, layout, memory format, and slices,
// tuples, frozensets and torch.Size of these.
bool IsPlainValue(PyObject* object);
// The same without slices, which have no hash.
bool IsPlainHashable(PyObject* object);
// Returns whether it is NaN, or a tuple or frozenset with one in it.
bool HoldsNan(PyObject* object);

// E1, E2. Neither raises nor allocates (except for ints beyond 64 bits, which CPython compares).
bool SameValue(PyObject* a, PyObject* b);

// Returns whether a set holds the item, as the set sees it (1 == True). `item`, of this hash, is plain, or a class
// whose metaclass leaves both to type. Returns kDoubt if only the __eq__ of an element could decide. Raises nothing.
Found SetHas(PyObject* set, PyObject* item, Py_hash_t hash);

// Short text without addresses: `3`, `'mean'`, `torch.float32`, `torch.nn.functional.relu`, `Model object`.
// Runs no code of a user; leaves the error indicator as it was.
std::string ShortRepr(PyObject* object);
// Returns UTF-8 text of at most `limit` bytes, which ends with "..." if it was longer. Cuts between characters.
std::string Shortened(std::string text, size_t limit);
std::string TypeName(PyTypeObject* type);  // `Model`: without module and enclosing scopes

}  // namespace frametap
