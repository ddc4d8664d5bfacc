// The recorder's knowledge about C callables, one row each. A row is found by the method definition of the object (a
// bound and an unbound method share it), or by the object itself.
//   T1  No row: the segment ends before the call.
//   T2  A row says what the callable reads (it is fixed before the call) and what it changes (an effect, or in-trace
//       only).
// Rows live in one table a family: builtins.cc, numbers_table.cc, text_table.cc, iteration_table.cc,
// containers_table.cc, copy_table.cc, torch_table.cc, numpy_table.cc. sorts.cc says why those without a row are known not to be
// part of a graph. tests/python/test_tables.py lists the callables without a row,
// and compares the pure ones with the real thing.
#pragma once

#include <Python.h>

#include <optional>
#include <string>

#include "frame_eval/record/objects/identity.h"
#include "frame_eval/record/trace.h"

namespace frametap {

enum class Conduct : uint8_t {
  kPure,         // the result follows from the values of the arguments; no tensors among them
  kPureObjects,  // … from values and from the identity of objects and tensors, not from the elements of tensors
  kTransparent,  // calls back into Python with (elements of) its arguments: map, sorted, any, next
  kTorch,        // dispatches ATen ops
  kState,        // switches grad mode, autocast …: the ops carry the state, the exit sets it
  kMutates,      // changes its first argument, a builtin container, like a method of the same name
  kTensorValue,  // asks for the value of a tensor
  kRefused,      // known, and known to be beyond the graph
  kSpecial,      // has a function of its own
};

using SpecialRow = void (*)(Trace& trace, Call& call);

struct CallableRow {
  const char* name;
  Conduct conduct = Conduct::kPure;
  SpecialRow special = nullptr;
  Reads reads = Reads::kValues;
  bool by_value = false;  // a special row that reads nothing but what SpecializeDeep of all arguments fixes
};

const CallableRow* FindCallable(PyObject* callable);  // null: unknown
const char* ConductName(Conduct conduct);
std::string CallableName(PyObject* callable);  // "numpy.asarray", for reasons
// The sort that a callable or another object is of, where users know one: NumPy, files … (sorts.cc)
std::optional<Reason> SortOf(PyObject* object);
Break Refusal(PyObject* callable);         // the segment ends before the call
bool IsModuleFunction(PyObject* builtin);  // a C function that is not bound to an object of the program's
bool LoadCallables();                      // once, at import; false with a Python exception set

// For the tables. `path` is an attribute of the module, or "" for the module itself.
Ref<> OwnerOf(const char* module, const char* path);  // null: there is none (and its exception cleared)
void AddRow(PyObject* callable, CallableRow row);     // null is ignored (and its exception cleared)
void AddRows(const char* module, const char* path, Conduct conduct, std::initializer_list<const char*> names,
             Reads reads = Reads::kValues);
void AddSpecial(const char* module, const char* path, const char* name, SpecialRow row, bool by_value = false,
                Reads reads = Reads::kValues);
void LoadBuiltins();
void LoadNumbers();
void LoadText();
void LoadIteration();
void LoadContainers();
void LoadCopy();
void LoadTorch();
void LoadNumPy();

bool IsNumPyNumber(PyObject* object);  // a number of NumPy's own types
// Plain numbers, or float64, whose sum, product and quotient NumPy computes without a warning (numpy_table.cc).
bool IsModestQuotient(PyObject* a, PyObject* b);
void LoadSorts();

// The key of a callable: the method definition that a bound and an unbound method share, or the object itself.
const void* KeyOf(PyObject* callable);

}  // namespace frametap
