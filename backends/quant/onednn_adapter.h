// The only place that knows torch's `onednn::q*` operators.
//   D1  Their schemas are compared, word by word, with the ones this file was written for; a difference is a Status.
//   D2  Activations and accumulators are uint8, weights packed int8, biases f32.
//   D3  onednn::qadd is not used: in torch 2.13 it wraps around where it should saturate (0 - 1 gives 255).
// Not here: which ops are sent to them (lower.cc).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "backends/quant/params.h"
#include "ir/graph.h"

namespace frametap::quant {

struct Int8Kernels {
  c10::OperatorHandle conv_pack;
  c10::OperatorHandle conv;
  c10::OperatorHandle conv_sum;
  c10::OperatorHandle linear_pack;
  c10::OperatorHandle linear;
};

// D1. The answer is kept for the process.
absl::StatusOr<const Int8Kernels*> FindInt8Kernels();

// False if u8 x s8 products saturate (x86 without VNNI, or oneDNN held below it by ONEDNN_MAX_CPU_ISA): activations are
// then limited to 0..127.
bool CpuTakesFullRange();

struct ConvShape {
  std::vector<int64_t> stride, padding, dilation;
  int64_t groups = 1;
};

// What the kernel computes after the sum of products.
struct PostOp {
  std::string name = "none";  // none, relu, hardtanh, hardswish, swish, gelu
  std::vector<double> numbers;
  std::string algorithm;
};

struct KernelCall {
  ValueId x;
  Params x_params;
  ValueId weight;  // packed
  ValueId scales;
  ValueId zero_points;
  std::optional<ValueId> bias;
  std::optional<Params> out;  // empty: f32
  PostOp post;
};

// `x_sizes`: a hint for the layout, or empty.
at::Tensor PackConv(const Int8Kernels& kernels, const at::Tensor& weight, const at::Tensor& scales, const Params& x,
                    const ConvShape& shape, c10::IntArrayRef x_sizes);
at::Tensor PackLinear(const Int8Kernels& kernels, const at::Tensor& weight, c10::IntArrayRef x_sizes);

std::vector<Arg> ConvArgs(const KernelCall& call, const ConvShape& shape);
// The result is added to `accumulator`, whose memory it may overwrite, before the post op (none or relu).
std::vector<Arg> ConvSumArgs(const KernelCall& call, const ConvShape& shape, ValueId accumulator, const Params& params);
std::vector<Arg> LinearArgs(const KernelCall& call);

}  // namespace frametap::quant
