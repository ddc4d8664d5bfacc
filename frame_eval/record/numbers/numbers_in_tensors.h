// Tensors that are made of numbers, and numbers that are taken from tensors, where the binding goes past the dispatcher:
// torch.tensor, tolist. The graph has ops of its own for them, which give the same to the bit.
#pragma once

#include <Python.h>

#include "frame_eval/record/trace.h"

namespace frametap {

void DataCall(Trace& trace, Call& call, size_t data);  // … that makes a tensor of Python data
void ListCall(Trace& trace, Call& call);               // x.tolist()
bool ConvertTensor(Trace& trace, Call& call,
                   bool to_float);  // float(x), int(x); false: its number is not a graph value
void LinkData(Trace& trace, FrameNote& note, PyObject* result);
bool LinkIndexList(Trace& trace, FrameNote& note, PyObject* tensor, PyObject* key, const std::vector<Node*>& made,
                   PyObject* result);
Shadow ListElements(Trace& trace, const FrameNote& note, PyObject* result);
std::optional<IntTerm> IntInTensor(Trace& trace, ValueId tensor);

}  // namespace frametap
