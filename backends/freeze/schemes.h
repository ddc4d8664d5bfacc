// Schemes: the ways of multiplying, as rows, and which layers are packed.
#pragma once

#include <optional>
#include <string>

#include "backends/freeze/freeze.h"
#include "backends/quant/convolution.h"
#include "backends/quant/normalise.h"

namespace frametap::freeze {

// One way of multiplying: its op, the ops that its kernel takes in, and its words in the report.
struct Scheme {
  Products products;
  const char* linear;
  bool has_convolutions;
  bool takes_more;  // a sum, and a curve
  const char* words;
};

const Scheme& InFloat32();

// Returns the scheme of a layer. `words`: for the report, where it is not plain.
const Scheme& ChooseScheme(const Config& config, const Node& node, std::string* words);

// Returns why torch runs the layer; "" if a kernel does, and then its convolution. `order_reader`: from op_traits.h.
std::string WhyNotPacked(const quant::NormalizedGraph& normal, const Node& node, const Node* order_reader,
                         std::optional<quant::Convolution>* convolution);

}  // namespace frametap::freeze
