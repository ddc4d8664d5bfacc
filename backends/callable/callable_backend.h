// The callable backend: a Python function `(GraphModule, example_inputs) -> callable`, as TorchDynamo's backends are.
//   D1  The function is called with examples that are real inputs, or stand for them: at once if the caller of
//       CompileFor has them, else at the first Run.
//   D2  An executable whose results do not fit the graph (number, kinds of results) raises; it never returns less.
//   D3  A function that raises is a BackendError with that exception as its cause, which Compile and Run throw.
//   D4  Run is called in the state of the graph's entry (states[0]); guards see to it.
// The Python half (torch.fx, specialisation on numbers and aliases) is frametap/_callable.py.
#pragma once

#include <pybind11/pybind11.h>

#include <functional>
#include <memory>
#include <string>

#include "backends/backend.h"

namespace frametap {

// Gives the Python object that shows a graph; the object does not refer to `graph` afterwards.
using GraphView = std::function<pybind11::object(const Graph& graph)>;

// With `static_shapes`, the callable that `function` returns takes sizes and strides of its inputs as constants. For open
// sizes (Examples), `function` gets fake tensors with symbols.
// Compile, Run and the destructors take Python's lock themselves.
std::unique_ptr<Backend> MakeCallableBackend(pybind11::object function, std::string name, bool static_shapes,
                                             GraphView view);

}  // namespace frametap
