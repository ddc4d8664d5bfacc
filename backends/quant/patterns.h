// Patterns: the parts of a reference graph that one kernel computes. Each begins with dequantized values, and ends with a
// quantize or a float result.
//   V1  A pattern that is known by its last node takes in the nodes before it. No node belongs to two.
//   V2  The sum of a float result of a linear layer and another tensor is part of the kernel, which raises nothing that the
//       sum would not.
// Not here: the kernels themselves (lower.cc).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "backends/quant/convolution.h"
#include "backends/quant/curves.h"
#include "backends/quant/op_table.h"
#include "backends/quant/params.h"
#include "backends/quant/rewrite.h"
#include "ir/graph/graph.h"

namespace frametap::quant {

// A layer and the ops that its kernel computes.
struct Kernel {
  NodeId anchor;
  NodeId add;          // or invalid
  NodeId post;         // or invalid
  NodeId quantize;     // or invalid: f32 result
  ValueId other;       // with `add`: the other addend (dequantized)
  NodeId float_sum{};  // of a linear layer without `post` and `quantize`; or invalid
  ValueId addend{};    // with `float_sum`: the other addend (floats)
  ValueId rows{};      // of a dynamic layer: its input (floats)
  int bits = 8;        // with `rows`
};

// An op on bytes without a weight.
struct ByteOp {
  NodeId op;
  NodeId relu;  // of an add, or invalid
  NodeId quantize;
};

class Patterns {
 public:
  explicit Patterns(const Graph& reference);

  const Kernel* KernelAt(NodeId last) const;
  const ByteOp* ByteOpAt(NodeId last) const;
  bool IsTaken(NodeId n) const { return taken_[n.raw()]; }  // part of some pattern
  const absl::flat_hash_map<NodeId, Kernel>& kernels() const { return kernel_at_; }
  const absl::flat_hash_map<NodeId, ByteOp>& byte_ops() const { return byte_op_at_; }

  // Facts about the reference graph.
  const Uses& uses() const { return uses_; }
  const Node* Def(ValueId v) const;                    // null: an input or a constant
  const at::Tensor* ConstantOf(ValueId v) const;       // null: not a constant
  std::optional<Params> Dequantized(ValueId v) const;  // the parameters of a dequantized activation
  bool IsFamily(NodeId n, Family f) const { return n.valid() && FamilyOf(graph_.node(n)) == f; }
  std::optional<Convolution> ConvolutionOf(NodeId n) const;       // `n`: a convolution with a dequantized weight
  std::optional<CurveOp> PostOf(NodeId n, bool after_sum) const;  // the op that `n` is at the end of a kernel

 private:
  void FindKernel(NodeId n);
  void FindByteOp(NodeId n);
  bool TakeFloatSum(NodeId layer, NodeId sum, Kernel* kernel) const;
  NodeId QuantizeAfter(NodeId n) const;

  const Graph& graph_;
  const Uses uses_;
  absl::flat_hash_map<ValueId, at::Tensor> constants_;
  std::vector<bool> taken_;
  absl::flat_hash_map<NodeId, Kernel> kernel_at_;
  absl::flat_hash_map<NodeId, ByteOp> byte_op_at_;
};

// Rounded rows are floats as well, which a dynamic layer has no need of.
bool IsDequantize(const Node& node);

// The parameters of a node that is a quantize.
Params ParamsOf(const Node& quantize);

}  // namespace frametap::quant
