// OpFacts: what an op does beyond computing tensors from tensors. Its schema, its tags and its row (ops.def) say so.
//   F1  A doubt errs towards true: a fact that is false has been decided, by the schema, by a tag or by a row.
//   F2  The answer depends on the op alone, never on its arguments, and is never stale. An op that was removed and
//       registered again under the same name is judged by its new schema.
//   F3  An op raises for some elements and not for others (an index out of range, a matrix without an inverse), unless its
//       row says that it does not. The exceptions are torch's tag for pointwise ops, and a schema that declares a view.
// Not here: shapes, and how an op is run.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace frametap {

struct OpFacts {
  bool writes_inputs = false;         // mutates an argument: in-place, out=, running statistics, gradients
  bool data_dependent_size = false;   // a size of a result may follow from the elements of an argument, or from nothing
  bool scalar_from_data = false;      // a result is a Python number that follows from the elements of an argument
  bool scalar_from_metadata = false;  // … from sizes, strides, dtype or other state that is not elements
  bool random = false;                // draws from a generator (for some arguments at least)
  bool factory = false;               // makes a tensor without reading elements of tensors: filling it is not a write
  bool size_dependent_rank = false;   // the rank of a result follows from sizes (or elements), not from ranks
  bool list_result = false;           // a result is a list of tensors; its length may follow from sizes
  bool no_result = false;             // run for its side effects: assertions, backward
  bool changes_metadata = false;      // an argument may have other sizes, strides or memory afterwards
  bool asks_for_elements = false;     // asks a tensor for an element while it runs, which is not in its results
  bool raises_on_elements = false;    // may raise for some elements and not for others (an index out of range)

  // Something that existed before may be another afterwards.
  bool changes_what_was() const { return writes_inputs || random; }
  // Only its results, or an exception, show that it ran.
  bool pure() const { return !writes_inputs && !random && !no_result; }
};

// Remembers its latest answers, for each thread. The reference is valid for ever.
const OpFacts& FactsOf(const c10::OperatorHandle& op);

}  // namespace frametap
