// Backend: compiles a graph. Executable: runs it.
//   B1  Run gives what running the recorded ops one after the other gives: values, dtypes, strides, aliasing, in-place
//       writes, RNG use, autograd.
//   B2  Nothing in this header or in the backends under it (but callable/) knows Python.
//   B3  An exception of an op leaves Run as the op threw it; the caller translates it. `*changed` then says whether
//       anything that existed before the run may be another.
//   B4  Compile refuses a graph that is not valid (ir/text/text.h). CompileFor trusts its graph: whoever records answers for
//       it, and a look at every node of a recording costs as much as the plan for it. The graph outlives the executable
//       and changes in words only (Segment::Shown).
#pragma once

#include <ATen/core/ivalue.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ir/graph/graph.h"
#include "ir/leaks.h"

namespace frametap {

// The facts that a backend relies on beyond rank, dtype, device and requires_grad of the inputs.
struct Assumptions {
  bool static_sizes = false;  // sizes of all inputs are exactly as in the recorded types
  bool static_strides = false;
};

// The inputs of a graph while it was recorded.
struct Examples {
  std::vector<c10::IValue> values;
  // Beside them, or empty: those that `static_sizes` was not applied to. Their sizes, strides, or the number may be others.
  std::vector<bool> open;
  struct Size {
    size_t input;   // a number …
    size_t tensor;  // … that is a size of this input
    int64_t dim;
  };
  std::vector<Size> sizes;
};

class Executable {
 public:
  virtual ~Executable() = default;
  // `inputs` in the order of Graph::inputs; gives the values of Graph::outputs. Sets `*changed` before the first op that
  // writes to a tensor or draws random numbers; one that does not know its ops sets it at once.
  // The caller keeps the inputs, and releases them when it has Python's lock again. To release the last reference but one
  // to a tensor that Python knows, c10 takes the lock, and a model has a thousand such tensors.
  virtual std::vector<c10::IValue> Run(const std::vector<c10::IValue>& inputs, bool* changed) = 0;
  std::vector<c10::IValue> Run(const std::vector<c10::IValue>& inputs) {
    bool changed = false;
    return Run(inputs, &changed);
  }
  // Whether a run looks at the input. Others need not be alive meanwhile.
  virtual bool Reads(size_t input) { return true; }
  // Whether a run runs the ops that were recorded: what one of these raises, the program raises there. Compiled code may
  // raise by itself.
  virtual bool runs_recorded_ops() const { return true; }
  // False if the caller must hold Python's lock (the executable calls Python itself).
  virtual bool releases_gil() const { return true; }
  // Whether a run gives other values than the recorded ops, as int8 does.
  virtual bool approximates() const { return false; }
  // The recorded ops ran in its place: the call that was recorded got their values.
  virtual void NoteRecordedRun() {}

 private:
  Counted<"executables"> counted_;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;
  virtual Assumptions assumptions() const { return {}; }
  // Whether its graphs may hold calls of the program's Python code: functions of autograd, kernels, checkpoints. A run
  // gives what plain Python gives then, the mode of tensors included.
  virtual bool calls_python() const { return false; }
  // … calls of NumPy.
  virtual bool calls_numpy() const { return false; }
  // Whether it asks a graph for names of inputs or places of nodes.
  virtual bool reads_words() const { return true; }
  // Whether CompileFor looks at its examples: it gets none otherwise.
  virtual bool reads_examples() const { return true; }
  // Whether its examples are as they were before the graph has written to them. They are as it has left them otherwise.
  virtual bool keeps_first_values() const { return false; }
  virtual absl::StatusOr<std::unique_ptr<Executable>> Compile(const Graph& graph) = 0;
  // B4. A valid graph with the values that its inputs had while recording, for a backend that wants examples.
  virtual absl::StatusOr<std::unique_ptr<Executable>> CompileFor(const Graph& graph, const Examples& examples) {
    return Compile(graph);
  }
};

std::unique_ptr<Backend> MakeReferenceBackend();
std::unique_ptr<Backend> MakeNativeBackend();

}  // namespace frametap
