// The reads of comparing, looking up, hashing and printing objects by their identity.
//   E1  Whether two objects are one: a relation between their sources. An object that the trace has made differs from
//       all others. That two sources lead to one object is guarded when the second is met (FromSource).
//   E2  C code that compares elements asks first whether they are one object, whatever their classes say about ==.
//   E3  A table of many objects: their addresses are guarded instead of each pair.
//   E4  An address itself (in a hash, in a text, as the order of a set) ends the segment, unless the object is fixed. The id of
//       an object that is passed is a number like its sizes until it is fixed (OpenAddress).
//   E5  NaN has the hash of its address and is equal to itself only. It ends the segment as a key, or among elements that
//       are compared with it. One that the recording fixes is guarded by identity.
//   E6  In which order a set gives its elements when others are added, or when it is copied, depends on what else has been
//       in it: on its layout, which is guarded where it matters, as long as the trace has not changed the set.
// Not here: what == of two values reads beyond that (SpecializeDeep, before), classes with methods of their own (frames).
#pragma once

#include <Python.h>

#include "frame_eval/record/trace.h"

namespace frametap {

// The identities of arguments that a C callable reads, beside their values (identity.cc).
enum class Reads : uint8_t {
  kValues,  // nothing
  kSearch,  // the second argument is looked for in the first: list.index
  kKey,     // … as a key: dict.pop
  kKeys,    // the elements of all arguments are keys of one table: set.union, dict(pairs)
  kCommon,  // … and the result does not hold all of them: set.intersection
  kEqual,   // the first two are compared
  kHash,    // the first is hashed
  kRepr,    // arguments are printed
  kStr,     // … by str()
};

enum class Printed : uint8_t { kRepr, kStr };

// Returns whether nothing about the object is worth a guard except which one it is. Instances of subclasses of int, float
// and str are among them (enumerations): their value is not compared by parts.
bool IsIdentityKind(PyObject* object);
// Returns whether a segment shall fit other objects in its place: modules, whose layers are alike. (Functions are known by
// their code: InvokePython.)
bool IsExchangeable(const Trace& trace, PyObject* object);
// Returns whether it is a scalar, a constant, or the very object by a guard.
bool IsFixed(Trace& trace, PyObject* object);
// Guards whether two objects are one.
void ReadSame(Trace& trace, PyObject* a, PyObject* b);
void ReadSameScalar(Trace& trace, PyObject* a, Shadow sa, PyObject* b, Shadow sb);
// Guards what `a == b` reads, between two objects or between elements that C code compares.
void ReadEqual(Trace& trace, PyObject* a, PyObject* b, int depth = 0);
void ReadEqualElements(Trace& trace, PyObject* a, PyObject* b, int depth = 0);
// Guards what a search in a sequence, and a look-up in a table, reads.
void ReadSearch(Trace& trace, PyObject* sequence, PyObject* item);
void ReadKey(Trace& trace, PyObject* table, PyObject* key);
// Ends the recording if a NaN is hashed, or looked for among others.
void RefuseNan(PyObject* object);
// Guards that these keys of one table are different objects.
void ReadDistinct(Trace& trace, const std::vector<PyObject*>& objects);
void ReadElements(Trace& trace, std::initializer_list<PyObject*> containers);
// Guards the order of a set, or the layout of one that is copied or taken from.
void ReadOrder(Trace& trace, PyObject* set);
void ReadLayout(Trace& trace, PyObject* object);
void ReadHash(Trace& trace, PyObject* object);
// Guards the id of a tensor, which its hash is as well. It must live longer than a call: any other has another id each time.
void ReadTensorAddress(Trace& trace, PyObject* tensor);
// Returns the id of an object that is passed as a number that is not fixed, or no shadow.
Shadow OpenAddress(Trace& trace, PyObject* object);
// Notes that an outcome is another one for another object of the kind.
void ReadsAddress(Trace& trace);
void ReadPrinted(Trace& trace, PyObject* object, Printed how, int depth = 0);
void ReadIdentities(Trace& trace, Reads reads, const Call& call);
// Returns the object whose id a number is.
SourceId AddressedBy(const Trace& trace, Shadow shadow);
void FixAddress(Trace& trace, SourceId source);

}  // namespace frametap
