// Convolution: the arguments of a convolution as numbers, in whichever way the op is spelt.
//   V1  It takes convolutions and transposed convolutions with one to three axes; "same" and "valid" become numbers.
//   V2  Anything that is not a constant, and images without a batch, are refused in words.
// Not here: weights; decisions on 8 bits.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "backends/onednn/layer.h"
#include "backends/quant/rewrite.h"
#include "ir/graph/graph.h"

namespace frametap::quant {

struct Convolution {
  size_t axes = 2;
  std::array<int64_t, 3> stride{1, 1, 1}, padding{0, 0, 0}, dilation{1, 1, 1}, output_padding{0, 0, 0};
  std::array<int64_t, 3> more_at_end{0, 0, 0};  // padding after the last pixel in addition to `padding`
  int64_t groups = 1;
  bool is_transposed = false;
};

bool IsTransposedConvolution(const Node& node);

// Whether the int8 kernel of the convolution adds a tensor to its result. Other ranks and transposed ones do not.
bool TakesSum(const Node& convolution, size_t rank);

// The dimension of the weight that the outputs are counted in. A transposed convolution counts the outputs of one group.
int64_t OutputAxisOf(const Node& layer);

// `node`: of Family::kConv. `input`, `weight`: sizes. Where it returns nothing, `why` completes "it is float because".
std::optional<Convolution> ConvolutionOf(const Node& node, size_t input_rank, c10::IntArrayRef weight,
                                         std::string* why);

void SetNumbers(const Convolution& convolution, onednn::Layer* layer);

// The sizes that the kernel reads, of an input of sizes `x`.
Sizes SizesAtEnd(const Convolution& convolution, Sizes x);
// Returns the images that a convolution reads. "same" padding may need one more pixel after the last than before the first.
// oneDNN 3.2 would take both numbers, and gives wrong results with AVX2. `x` is a value of `out`, and `zero` is the number
// that means 0.
ValueId PaddedAtEnd(const Convolution& convolution, ValueId x, Type type, const c10::IValue& zero, const Node& like,
                    Rewrite* out);

}  // namespace frametap::quant
