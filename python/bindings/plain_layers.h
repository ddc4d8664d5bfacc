// Plain layers: records layers that plain Python runs in a call of an int8 model, between the graphs or in place of them.
//   P1  A layer counts if it runs on this thread, outside of graphs and of recordings. Both have counts of their own.
//       On another thread it counts if it takes a weight of the model and that thread is in no call of its own.
//   P2  The first layer of a call is named with its place in the user's source. Files decide about these words only.
// Not here: layers in graphs (backends/quant/quant_backend.h); the words that users read (python/frametap/_quantized_model.py).
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "backends/quant/quant_backend.h"

namespace frametap {

// The parameters of one model, which lives longer. Known by their addresses, so that they are not kept alive.
class OwnWeights {
 public:
  explicit OwnWeights(const std::vector<at::Tensor>& parameters);
  bool AreAmong(c10::ArrayRef<const c10::IValue> inputs) const;

 private:
  absl::flat_hash_set<const c10::TensorImpl*> impls_;
};

// While alive, layers are watched if `watches`. Nests; the innermost of a thread counts. Python's lock is held where it
// begins and ends.
class PlainLayers {
 public:
  PlainLayers(const quant::Tally& tally, const OwnWeights& weights, bool watches);
  ~PlainLayers();
  PlainLayers(const PlainLayers&) = delete;
  PlainLayers& operator=(const PlainLayers&) = delete;

  int count() const { return count_; }
  const std::string& first() const { return first_; }  // "aten.linear at forward:12", or ""

 private:
  static std::unique_ptr<at::ObserverContext> Note(const at::RecordFunction& op);
  static std::unique_ptr<at::ObserverContext> NoteElsewhere(const at::RecordFunction& op);
  void Count(const c10::OperatorName& op);  // needs Python's lock

  const quant::Tally& tally_;
  const OwnWeights& weights_;
  const bool watches_;
  PlainLayers* const previous_;
  at::CallbackHandle handle_ = 0, handle_elsewhere_ = 0;
  int count_ = 0;
  std::string first_;
};

}  // namespace frametap
