// Choose: for each layer the quickest of static int8, dynamic int8 and float on this processor, among those that keep the
// signal to noise that was asked for.
//   H1  Layers are timed one by one, on an input of the calibration, with the quantization of that input.
//   H2  A form counts as quicker if it saves a tenth of the time. Else the order is: static, dynamic, float.
//   H3  A layer is known by its weight. A later recording of it gets the same form.
// Not here: what each form is (convert.cc, dynamic_linear.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "backends/quant/normalise.h"
#include "backends/quant/params.h"
#include "ir/graph/graph.h"

namespace frametap::quant {

struct Choice {
  enum class Form : uint8_t { kStatic, kDynamic, kFloat };
  Form form = Form::kStatic;
  std::string words;  // why, with the times
};

class Choices {
 public:
  explicit Choices(double least_sqnr) : least_sqnr_(least_sqnr) {}

  // The choice for a layer of a normalised graph; null if there is none.
  const Choice* Find(const Normal& normal, NodeId layer) const;
  // Makes it. `x`: an input of the layer. `params`: of its bytes in the static form. `bits`: 7 or 8, of the bytes in the
  // dynamic form.
  void Make(const Normal& normal, NodeId layer, const at::Tensor& x, const Params& params, int bits);

 private:
  const double least_sqnr_;
  absl::flat_hash_map<std::string, Choice> by_weight_;
};

}  // namespace frametap::quant
