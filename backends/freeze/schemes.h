// Schemes: the ways of multiplying, as rows.
#pragma once

#include <string>

#include "backends/freeze/freeze.h"

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

}  // namespace frametap::freeze
