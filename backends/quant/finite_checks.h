// Finite checks: a lowered graph that notes where NaN or infinity is about to become bytes, which cannot hold it.
//   N1  A check is a node before the first kernel that reads a float value as bytes. It changes nothing.
//   N2  Notes belong to the thread. The first one of a call is kept.
// Not here: who raises (python/frametap/_quantized_model.py).
#pragma once

#include <string>

#include "ir/graph/graph.h"

namespace frametap::quant {

Graph WithFiniteChecks(const Graph& lowered);

// While alive, notes of this thread are its own. Nests.
class FiniteNotes {
 public:
  FiniteNotes();
  ~FiniteNotes();
  FiniteNotes(const FiniteNotes&) = delete;
  FiniteNotes& operator=(const FiniteNotes&) = delete;

  // "the input %x", or "" if all was finite.
  const std::string& first() const;

 private:
  std::string before_;
};

// Returns the first note and forgets it.
std::string TakeNotFinite();

void RegisterFiniteChecks();  // once for the process, by RegisterOperators of operators.h

}  // namespace frametap::quant
