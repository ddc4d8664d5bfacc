// Iteration: the generators and iterators of a recording.
// Not here: what they give (generators.h, iterators.h).
#pragma once

#include <Python.h>

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "frame_eval/interpreter/shadow.h"
#include "guards/ref.h"
#include "ir/graph/ids.h"

namespace frametap {

struct SavedGenerator {  // generators.cc
  Ref<> generator;
  std::vector<Shadow> shadows;
  Ref<> function;
  bool is_left = false;  // its frame was the entry frame, or a caller in which the recording continued
  uint32_t epoch = 0;    // of one that existed before: when it was met

  PyCodeObject* code() const { return reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function.get())); }
};

struct MetIterator {  // one that existed before
  SourceId source;
  SourceId left;  // how many items were left at the entry; none if it takes from other iterators
  bool was_at_end = false;
  bool lost = false;  // what was left at the entry is not known
  int64_t taken = 0;  // by the trace
};

struct TakenItem {  // what an iterator gives: one object, or a new tuple
  bool is_tuple = false;
  Shadow shadow;
  std::vector<TakenItem> parts;
};

struct OpenIterator {  // of the trace's own, over rows or dicts whose numbers or containers are not fixed
  enum class Gives : uint8_t { kItem, kTuple, kNumbered, kValue, kPair } gives = Gives::kItem;
  std::vector<PyObject*> rows;  // borrowed: the iterator holds them
  Py_ssize_t next = 0;
};

// Items that C code takes from an iterator at once.
struct GivenItems {
  using Parts = absl::InlinedVector<Shadow, 2>;
  std::vector<Parts> shadows;  // of the parts of each item, which is a tuple made for it; or one shadow, of the item
  std::vector<PyObject*> objects;  // borrowed: the items, if they are no tuples
};

struct Iteration {
  absl::flat_hash_map<_PyInterpreterFrame*, SavedGenerator> generators;
  std::vector<PyObject*> outside_generators;  // of `generators`: those that existed before
  absl::flat_hash_map<PyObject*, MetIterator> met;
  absl::flat_hash_map<PyObject*, OpenIterator> open;
  std::vector<PyObject*> iterated;  // by the operation at work, which makes such an iterator
  TakenItem taken;                  // by the operation at work
  GivenItems given;                 // to the operation at work, which makes a row of tuples
};

}  // namespace frametap
