// Freeze: a float graph with its weights packed for oneDNN, and with fewer and larger ops.
//   F1  Weights are inputs of the graph whose tensors are given beside it. They are frozen: results do not see later changes
//       of them.
//   F2  The result has the same inputs in the same order (weights are still taken, and ignored), and as many outputs, with
//       the same sizes, dtypes and strides (../quant/layouts.h).
//   F3  Values differ from the float graph's by rounding. Batch norms are folded into weights in float64, and sums are taken
//       in another order. With bfloat16, factors of products are rounded to it, and sums are of float32.
//   F4  A layer takes the ops after it into its kernel if nothing else reads the values between them. These are the sum with a
//       tensor of its result's sizes, then a curve (relu, gelu …). A view of a linear layer's matrix may stand before them,
//       unless their result is one of the graph's: it is taken of the kernel's result.
//   F5  Images lie pixel by pixel (channels_last) between ops that keep it so. All other ops read copies that lie as in the float graph.
//   F6  No gradients: all ops run in no-grad mode.
//   F7  Each op of the float graph has a row in the report, with a reason where torch runs it.
//   F8  With bfloat16 on a processor that has products of it, layers and attention read it. A value that only these read, perhaps
//       through pools, curves and reshapes, is stored in it, and so is the result of a layer norm. Results of the graph are
//       float32, and so are values that are written in place or share memory with either.
// Not here: when graphs are recorded (freeze_backend.h), kernels (backends/onednn).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "backends/freeze/finite.h"
#include "backends/quant/frozen.h"
#include "backends/quant/quantize.h"
#include "backends/quant/reported_op.h"
#include "ir/graph/graph.h"

namespace frametap::freeze {

// How layers multiply.
enum class Products : uint8_t {
  kFloat32,
  kBfloat16,
  kDynamicInt8,  // linear layers: bytes, with parameters for each row at each call; other layers as kFloat32
};

struct Config {
  Products products = Products::kFloat32;
  quant::QuantConfig by_request{};  // of kDynamicInt8: the layers that stay in float, and the bits of activations
  bool keeps_grad_mode = false;     // instead of F6, for a graph that computes no gradients
};

enum class Form : uint8_t {
  kKernel,  // a kernel of oneDNN, or of ours where the reason says so
  kFused,   // part of the kernel before it
  kFolded,  // gone, into a weight or into nothing
  kTorch,   // torch's own op
};
const char* ToString(Form form);

struct OpReport : quant::ReportedOp {
  Form form = Form::kTorch;
  std::string reason{};  // where it went; for a layer of torch or of another scheme, why
  bool is_int8 = false;
};

struct FrozenGraph {
  Graph graph;
  std::vector<OpReport> report;  // by node of the float graph
  int kernels = 0;
  std::vector<CheckedInput> checked;  // finite/N1
};

// Returns kInvalidArgument if weights and graph do not fit, and kUnimplemented if oneDNN is missing or has no kernel.
// `frozen`: where folded and packed weights are kept; may be null.
absl::StatusOr<FrozenGraph> Freeze(const Graph& graph, const std::vector<at::Tensor>& weights, const Config& config,
                                   quant::FrozenWeights* frozen = nullptr);

}  // namespace frametap::freeze
