// Ops of a graph that make a call in Python in each run: the parts that function_nodes, checkpoint_nodes and
// array_nodes share.
//   O1  A node knows its call by a number. The call is kept until its owner ends; the segment holds the owner.
//   O2  A kernel runs under Python's lock, and its own operators are not recorded. A pending exception leaves it as one of C++.
//   O3  A run commits changes of Python objects after all ops. So the program's code that an op calls must not read what the
//       trace has changed before it.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <Python.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "guards/throw_if_null.h"

namespace frametap {

struct PendingEffect;

// O3
bool MayBeSeen(const std::vector<PendingEffect>& changes);

// Calls of one kind, by their numbers. Under Python's lock.
template <typename Call>
class KeptCalls {
 public:
  static int64_t Keep(Call call, Ref<>* owner) {
    static int64_t last = 0;
    const int64_t id = ++last;
    *owner = Must(PyCapsule_New(reinterpret_cast<void*>(static_cast<intptr_t>(id)), nullptr, Drop));
    All().emplace(id, std::move(call));
    return id;
  }
  static int64_t IdOf(PyObject* owner) { return reinterpret_cast<intptr_t>(PyCapsule_GetPointer(owner, nullptr)); }
  // Null if its owner has ended.
  static const Call* Find(int64_t id) {
    const auto found = All().find(id);
    return found == All().end() ? nullptr : &found->second;
  }

 private:
  static absl::flat_hash_map<int64_t, Call>& All() {
    static auto* const calls = new absl::flat_hash_map<int64_t, Call>();
    return *calls;
  }
  static void Drop(PyObject* owner) {
    const auto call = All().extract(IdOf(owner));  // what it held may run code when it ends
  }
};

// O2
void RunInPython(absl::FunctionRef<void()> body);

// Registers an op by its schema. At import.
void RegisterPythonOp(const std::string& schema, c10::DispatchKey key, const c10::KernelFunction& kernel);

// Registers `name` and `writing`: the second one writes to its tensors, or returns their memory. `more` has parameters
// after the tensors (", int[] numbers"). At import.
void RegisterPythonOps(const char* name, const char* writing, const char* more, const c10::KernelFunction& kernel);

}  // namespace frametap
