// The operators this backend knows: one row each. Everything else is float, with the reason of the default row.
//   R1  Matching is by schema name and overload, never by module names.
//   R2  `fresh`: the outputs share no memory with any argument. An op without a row may alias everything.
// Not here: which of them become int8 in a given graph (annotate.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/graph/graph.h"

namespace frametap::quant {

enum class Family : uint8_t {
  kConv,       // int8 kernel with a weight
  kLinear,     // int8 kernel with a weight
  kRecurrent,  // int8 products, dynamic
  kAdd,        // int8 kernel of its own, or part of a convolution; also a difference
  kMul,        // int8 kernel of its own where both factors are bytes
  kRelu,       // part of the kernel before it, or bytes with its input's parameters
  kCurve,      // a function of each element: part of the kernel before it, or a table
  kAvgPool,    // bytes with parameters of its own, as the next two
  kAdaptivePool,
  kMean,     // over height and width only
  kMaxPool,  // bytes with its input's parameters, as the next one
  kShape,
  kMove,       // bytes: moves, repeats or interpolates elements, or pads with zeros
  kCat,        // bytes; its inputs share parameters with its output
  kBatchNorm,  // folded, or float
  kDropout,    // dropped in eval mode
  kFloat,      // known to stay float
};

struct OpRow {
  const char* name;
  const char* overload;
  Family family;
  bool fresh;
  const char* why;  // kFloat: why there is no int8 form, with advice
};

// The row of a node's op, or null.
const OpRow* RowOf(const Node& node);

// The family of the row. A sum, product or quotient with a number is a curve; an op without a row is kFloat.
Family FamilyOf(const Node& node);

// Whether the op is a mean of elements of images.
inline bool IsAverage(Family f) { return f == Family::kAvgPool || f == Family::kAdaptivePool || f == Family::kMean; }

// Returns whether ops of the family read and give bytes without a weight.
bool IsByteFamily(Family f);

// Whether the op is of Family::kConv or kLinear: it has a weight, and an int8 kernel.
bool IsLayer(const c10::OperatorName& op);
bool IsLayer(const Node& node);

// Arguments by schema name.
const Arg* FindArg(const Node& node, const char* name);
std::optional<std::vector<int64_t>> ConstInts(const Arg* arg);  // an int counts as a list of one
std::optional<int64_t> ConstInt(const Arg* arg);
std::optional<bool> ConstBool(const Arg* arg);
std::optional<double> ConstNumber(const Arg* arg);
bool IsNone(const Arg* arg);
std::optional<ValueId> TensorArg(const Node& node, const char* name);  // a value, not a constant

// Returns the values that an op without a weight computes with.
std::vector<ValueId> ActivationsOf(const Node& node);

// Whether a mean is over height and width of a batch of images, and in the type of its input.
bool IsMeanOverImage(const Node& node, size_t input_rank);

// Whether no other number than zero is padded. Also true of ops that do not pad, or pad with elements of their input.
bool PadsWithZero(const Node& node);
bool PadsWithNumber(const Node& node);

// "aten::relu" and "": the schema a node runs.
bool Is(const Node& node, const char* name, const char* overload = "");

}  // namespace frametap::quant
