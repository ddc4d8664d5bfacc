// Plain layers: records layers that plain Python runs in a call of an int8 model, between the graphs or in place of them.
//   P1  A layer counts if it runs on this thread, outside of graphs and of recordings. Both have counts of their own.
//   P2  The first layer of a call is named with its place in the user's source. Files decide about these words only.
// Not here: layers in graphs (backends/quant/quant_backend.h); the words that users read (python/frametap/_quantized_model.py).
#pragma once

#include <ATen/record_function.h>

#include <string>

#include "backends/quant/quant_backend.h"

namespace frametap {

// While alive, layers of this thread are watched if `watches`. Nests; the innermost counts.
class PlainLayers {
 public:
  PlainLayers(const quant::Tally& tally, bool watches);
  ~PlainLayers();
  PlainLayers(const PlainLayers&) = delete;
  PlainLayers& operator=(const PlainLayers&) = delete;

  int count() const { return count_; }
  const std::string& first() const { return first_; }  // "aten.linear at forward:12", or ""

 private:
  static std::unique_ptr<at::ObserverContext> Note(const at::RecordFunction& op);

  const quant::Tally& tally_;
  const bool watches_;
  PlainLayers* const previous_;
  at::CallbackHandle handle_ = 0;
  int count_ = 0;
  std::string first_;
};

}  // namespace frametap
