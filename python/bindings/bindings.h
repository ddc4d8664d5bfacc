// The only pybind11 outside backends/callable: one file a noun, each with one function that adds it to the module.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "backends/quant/quantize.h"
#include "ir/graph/graph.h"

namespace frametap {

// A graph as Python sees it. `weights[i]` is defined where input i is a parameter or buffer known at capture; a segment
// does not keep them, whoever asked for its graph does.
struct GraphHandle {
  std::shared_ptr<const Graph> graph;
  std::vector<at::Tensor> weights;
  std::string gone;  // the first one that was freed between the capture and the question; "": none

  const std::vector<at::Tensor>& WeightsOrThrow() const;
};

// A compiled graph as Python sees it: the executable with the names and kinds of its inputs and outputs.
struct ExecutableHandle {
  std::shared_ptr<const Graph> graph;
  std::shared_ptr<Executable> executable;
};

// A backend as Python sees it (shared with the compiled functions that use it).
using BackendHandle = std::shared_ptr<Backend>;

// The options of a quantization. Throws for an unknown one.
quant::QuantConfig QuantConfigOf(const pybind11::dict& options);

void BindErrors(pybind11::module_& m);          // errors.cc: absl::Status and C++ errors to frametap's exceptions
void BindGraph(pybind11::module_& m);           // graph.cc: Graph, Node, Value, parse, print, verify
void BindBackends(pybind11::module_& m);        // backends.cc: reference, native, callable
void BindQuant(pybind11::module_& m);           // quant.cc
void BindOffload(pybind11::module_& m);         // offload.cc: float weights of quantized models in a file
void BindFreeze(pybind11::module_& m);          // freeze.cc
void BindInferenceCalls(pybind11::module_& m);  // inference_calls.cc: calls of quantized and frozen models
void BindCallables(pybind11::module_& m);       // callables.cc: what is known of C callables
void BindProfilerMarks(pybind11::module_& m);   // profiler_marks.cc: nothing for Python, a test for the recorder
void BindCompiled(pybind11::module_& m);        // compiled.cc: CompiledFunction, Segment, Guard

}  // namespace frametap
