// Recurrence: LSTM, GRU and RNN of torch, and their cells, with products that are packed.
//   N1  The products of a layer's input are one product for all steps. Each step multiplies its state.
//   N2  Products of bytes follow dynamic_linear.h: each row of an input and of a state has parameters of its own.
//       Gates and states are float32.
//   N3  Results have the strides of torch's.
//   N4  The operators take matrices or kernels (kernel_tensor.h) as weights. The reference graph has matrices: rows are
//       rounded as a kernel rounds them, and multiplied in float32.
// Not here: which recurrences become int8 (annotate.h), or packed floats (backends/freeze).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "backends/onednn/layer.h"
#include "backends/quant/normalise.h"
#include "ir/graph/graph.h"

namespace frametap::quant {

enum class Cell : int64_t { kLstm, kGru, kTanh, kRelu };

// One layer in one direction.
struct RecurrentPart {
  ValueId input_weight, state_weight;
  ValueId input_bias, state_bias;  // or invalid
};

struct Recurrence {
  Cell cell = Cell::kLstm;
  bool is_step = false;  // of a cell: one step, without a dimension for steps
  bool is_bidirectional = false, is_batch_first = false;
  std::vector<RecurrentPart> parts;  // by layer and direction
};

// `node`: of Family::kRecurrent. Where it returns nothing, `why` completes "it is float because".
std::optional<Recurrence> RecurrenceOf(const NormalizedGraph& normal, const Node& node, std::string* why);

// Returns the node as an operator of ours. `args`: the arguments of `node` in the new graph. `weights`, `biases`: two for
// each part, of the input and of the state; no biases if there are none, or if the weights are kernels. `bits`: of bytes,
// 7 or 8.
Node AsOurs(Node node, const Recurrence& recurrence, std::vector<Arg> args, std::vector<Arg> weights,
            std::vector<Arg> biases, int bits);

// The sizes of the rows that product `i` multiplies: of the input, or of a state. `node`: torch's or ours.
Sizes RowsOfProduct(const Graph& graph, const Node& node, size_t i, const onednn::Layer& layer);

// Whether the node is such an operator.
bool IsRecurrence(const Node& node);

void RegisterRecurrentOperators();  // once for the process, by RegisterOperators of operators.h

}  // namespace frametap::quant
