// Accessor: one step of a source on real objects, without running Python code.
//   A1  A step is safe on any object: what does not have the expected shape cannot be followed.
//   A2  How an attribute is read (instance dict, slot, which dict of a module) is settled when the step is made.
// Not here: remembering what was reached (guard_tree.cc), names (ir/segment/source.h).
#pragma once

#include <Python.h>

#include <cstdint>
#include <string>

#include "guards/objects/dict_read.h"
#include "guards/ref.h"
#include "guards/stable_vector.h"
#include "ir/graph/ids.h"
#include "ir/segment/source.h"

namespace frametap {

struct Roots;

// The result at a source: an object (borrowed), or a number where there is no object (IsNumber).
struct Reached {
  PyObject* object = nullptr;
  int64_t number = 0;
  static Reached Object(PyObject* object) { return {object, 0}; }
  static Reached Number(int64_t number) { return {nullptr, number}; }
};

// The dicts that belong to an object.
enum class DictOf : uint8_t { kSelf, kInstance, kGlobals, kKwDefaults };

// Address of the pointer to that dict; it lives as long as `object`. An object without one gives the address of a
// null. Not for kSelf.
PyObject** DictSlot(DictOf which, PyObject* object);
PyObject* DictAt(DictOf which, PyObject* object);  // borrowed; null if there is none
// May the dict be read without asking its type? Subclasses may for objects' own dicts, where CPython does so too.
bool IsReadable(DictOf which, PyObject* dict);

struct Step {
  // The dict that is read and its key, if the last part of the step is such a read.
  enum class Via : uint8_t { kDict, kModule, kOther };

  SourceId parent;
  Accessor accessor = Accessor::kLocal;
  Via via = Via::kOther;
  DictOf dict = DictOf::kSelf;  // kDict
  uint8_t home = 0;             // kModule: 0 _parameters, 1 _buffers, 2 _modules
  int64_t index = 0;
  Key key;                      // attribute name or dict key; kPinned: the object
  std::string text;             // roots: the name
  Ref<PyTypeObject> slot_type;  // kAttr that is a slot
  Py_ssize_t slot_offset = 0;
};

inline bool IsRoot(Accessor a) {
  return a == Accessor::kLocal || a == Accessor::kCell || a == Accessor::kStack || a == Accessor::kPinned ||
         a == Accessor::kFunction;
}
inline bool IsNumber(Accessor a) {
  return a == Accessor::kSize || a == Accessor::kStride || a == Accessor::kLength || a == Accessor::kCount ||
         a == Accessor::kLeft || a == Accessor::kAddress;
}

// A2. `parent` is the object that the parent has been seen to be. `index` of kModuleAttr: as Step::home.
Step MakeStep(SourceId parent_id, PyObject* parent, Accessor accessor, int64_t index, PyObject* key);
const Key& ModuleDictKey(int home);  // "_parameters", "_buffers", "_modules"
PyObject* ModuleDictName(int home);  // borrowed

bool Follow(const Step& step, PyObject* parent, const Roots& roots, Reached* out);
std::string WhyNotFollowed(const Step& step, PyObject* parent, const Roots& roots);

using Steps = StableVector<Step>;  // by SourceId
SourceTable TableOf(const Steps& steps);
// Adds the steps that `table` lacks to one that has the first of them. Ids of both are the same.
void AddNewSteps(const Steps& steps, SourceTable* table);
// Returns the name that `id` has in the table of all steps, without making that table.
std::string NameOf(const Steps& steps, SourceId id);
Source InWords(const Step& step);

}  // namespace frametap
