// Sizes and ranks of tensors as numbers of the graph, traced back through ops to sizes of inputs. Also the hidden
// reads of them (numbers/N2).
#pragma once

#include <Python.h>

#include "frame_eval/record/trace.h"

namespace frametap {

Shadow SizeOf(Trace& trace, PyObject* tensor, int64_t dim);
Shadow SizeOf(Trace& trace, ValueId tensor, int64_t dim);
void FixRank(Trace& trace, ValueId tensor);
Shadow CountOfElements(Trace& trace, PyObject* tensor);
std::optional<Shadow> TraceSize(Trace& trace, ValueId value, int64_t dim, int depth);
bool IsNotNegative(const Trace& trace, const IntTerm& term);
std::optional<IntTerm> IntOp(Trace& trace, BuiltinOp op, const IntTerm& a, const IntTerm& b);
bool GivesBack(Trace& trace, const FrameNote& note, const Event& e, PyObject* result);
bool IsKnownToBeNew(Trace& trace, const FrameNote& note, const Event& e, const KnownTensor& result);
void ReadListLength(Trace& trace, const Node& node, const Event& e);
void RefuseUnknownLength(const Node& node);

}  // namespace frametap
