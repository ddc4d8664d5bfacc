// Choose: for each layer the quickest of static int8, dynamic int8 and float on this processor, among those that keep the
// signal to noise that was asked for.
//   H1  Layers are timed one by one, on an input of the calibration, with the quantization of that input. A recurrence
//       counts as a layer without a static form.
//   H2  A form counts as quicker if it saves a tenth of the time. Else the order is: static, dynamic, float.
//   H3  A layer is known by its weight. A later recording of it gets the same form.
// Not here: what each form is (converter.h, dynamic_linear.h).
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
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
  const Choice* Find(const NormalizedGraph& normal, NodeId layer) const;
  // Makes it. `value`: the values that the layer reads, except frozen ones. `params`: of the bytes of its input in the
  // static form. `bits`: 7 or 8, of bytes.
  void Make(const NormalizedGraph& normal, NodeId layer, absl::FunctionRef<c10::IValue(ValueId)> value,
            const Params& params, int bits);

 private:
  const double least_sqnr_;
  absl::flat_hash_map<std::string, Choice> by_weight_;
};

}  // namespace frametap::quant
