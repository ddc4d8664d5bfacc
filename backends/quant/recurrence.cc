#include "backends/quant/recurrence.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backends/quant/dynamic_linear.h"
#include "backends/quant/kernel_tensor.h"
#include "backends/quant/op_table.h"
#include "backends/quant/operators.h"
#include "backends/quant/wide_loop.h"

namespace frametap::quant {
namespace {

// An operator of torch.
struct Spelling {
  const char* name;
  const char* overload;
  Cell cell;
  bool is_step;
};

constexpr Spelling kSpellings[] = {
    {"aten::lstm", "input", Cell::kLstm, false},     {"aten::gru", "input", Cell::kGru, false},
    {"aten::rnn_tanh", "input", Cell::kTanh, false}, {"aten::rnn_relu", "input", Cell::kRelu, false},
    {"aten::lstm_cell", "", Cell::kLstm, true},      {"aten::gru_cell", "", Cell::kGru, true},
    {"aten::rnn_tanh_cell", "", Cell::kTanh, true},  {"aten::rnn_relu_cell", "", Cell::kRelu, true},
};

const Spelling* SpellingOf(const Node& node) {
  const auto found = std::find_if(std::begin(kSpellings), std::end(kSpellings),
                                  [&](const Spelling& s) { return Is(node, s.name, s.overload); });
  return found == std::end(kSpellings) ? nullptr : found;
}

int64_t GatesOf(Cell cell) { return cell == Cell::kLstm ? 4 : cell == Cell::kGru ? 3 : 1; }

// Returns tanh as a quotient of polynomials, within a few units of the last place. NaN stays NaN. Coefficients
// and bound are the ones in ptanh_float of Eigen.
[[gnu::always_inline]] inline float TanhOf(float value) {
  float x = value > 7.9053111f ? 7.9053111f : value;
  x = x < -7.9053111f ? -7.9053111f : x;
  const float y = x * x;
  float p = -2.76076847742355e-16f;
  p = p * y + 2.00018790482477e-13f;
  p = p * y + -8.60467152213735e-11f;
  p = p * y + 5.12229709037114e-08f;
  p = p * y + 1.48572235717979e-05f;
  p = p * y + 6.37261928875436e-04f;
  p = p * y + 4.89352455891786e-03f;
  float q = 1.19825839466702e-06f;
  q = q * y + 1.18534705686654e-04f;
  q = q * y + 2.26843463243900e-03f;
  q = q * y + 4.89352518554385e-03f;
  return x * p / q;
}

[[gnu::always_inline]] inline float SigmoidOf(float value) { return 0.5f + 0.5f * TanhOf(0.5f * value); }

// One row of a step. `a`, `b`: the gates of the input and of the state, one after the other. `h` and `c` are read and
// written. `y`: the result.
FRAMETAP_WIDE_LOOP
void StepLstm(const float* __restrict a, const float* __restrict b, int64_t n, float* __restrict h, float* __restrict c,
              float* __restrict y) {
  for (int64_t i = 0; i < n; ++i) {
    const float in = SigmoidOf(a[i] + b[i]);
    const float forget = SigmoidOf(a[n + i] + b[n + i]);
    const float cell = TanhOf(a[2 * n + i] + b[2 * n + i]);
    const float out = SigmoidOf(a[3 * n + i] + b[3 * n + i]);
    c[i] = forget * c[i] + in * cell;
    y[i] = h[i] = out * TanhOf(c[i]);
  }
}

FRAMETAP_WIDE_LOOP
void StepGru(const float* __restrict a, const float* __restrict b, int64_t n, float* __restrict h,
             float* __restrict y) {
  for (int64_t i = 0; i < n; ++i) {
    const float reset = SigmoidOf(a[i] + b[i]);
    const float update = SigmoidOf(a[n + i] + b[n + i]);
    const float now = TanhOf(a[2 * n + i] + reset * b[2 * n + i]);
    y[i] = h[i] = (h[i] - now) * update + now;
  }
}

FRAMETAP_WIDE_LOOP
void StepTanh(const float* __restrict a, const float* __restrict b, int64_t n, float* __restrict h,
              float* __restrict y) {
  for (int64_t i = 0; i < n; ++i) y[i] = h[i] = TanhOf(a[i] + b[i]);
}

FRAMETAP_WIDE_LOOP
void StepRelu(const float* __restrict a, const float* __restrict b, int64_t n, float* __restrict h,
              float* __restrict y) {
  for (int64_t i = 0; i < n; ++i) {
    const float sum = a[i] + b[i];
    y[i] = h[i] = sum < 0 ? 0 : sum;
  }
}

void StepRow(Cell cell, const float* a, const float* b, int64_t n, float* h, float* c, float* y) {
  switch (cell) {
    case Cell::kLstm:
      return StepLstm(a, b, n, h, c, y);
    case Cell::kGru:
      return StepGru(a, b, n, h, y);
    case Cell::kTanh:
      return StepTanh(a, b, n, h, y);
    case Cell::kRelu:
      return StepRelu(a, b, n, h, y);
  }
}

// The weights of one part, in either form (N4).
class Products {
 public:
  Products(at::TensorList weights, at::TensorList biases, size_t index, int64_t bits)
      : weight_(weights[index]), bias_(biases.empty() ? at::Tensor() : biases[index]), bits_(bits) {}

  // `x`: dense rows of float32. The result is overwritten by the next call.
  const at::Tensor& operator()(const at::Tensor& x) {
    if (KernelIn(weight_) != nullptr) {
      Multiply(x);
    } else {
      result_ = at::linear(RoundedRows(x, static_cast<int>(bits_)), weight_, bias_);
    }
    return result_;
  }

 private:
  // The steps of a sequence allocate nothing.
  void Multiply(const at::Tensor& x) {
    const onednn::Layer& layer = KernelIn(weight_)->layer();
    TORCH_CHECK(x.size(-1) == layer.inputs(), "recurrence: expected rows of ", layer.inputs(), " features, got sizes ",
                x.sizes());
    if (!result_.defined()) {
      c10::DimVector sizes(x.sizes().begin(), x.sizes().end());
      sizes.back() = layer.outputs();
      result_ = at::detail::empty_cpu(sizes, at::kFloat);
    }
    RunFloatRows(weight_, x.const_data_ptr<float>(), x.numel() / layer.inputs(), result_.mutable_data_ptr<float>());
  }

  const at::Tensor& weight_;
  const at::Tensor bias_;
  const int64_t bits_;
  at::Tensor result_;
};

struct Arguments {
  Cell cell;
  at::TensorList weights, biases;
  int64_t bits;
  bool is_bidirectional;
};

// `x`: [steps, rows, features]. `h`, `c`: [parts, rows, features]; one part is updated, and `c` is undefined except in an
// LSTM. `y`: [steps, rows, features of all directions].
void RunPart(const Arguments& args, size_t part, const at::Tensor& x, const at::Tensor& h, const at::Tensor& c,
             bool is_reverse, const at::Tensor& y, int64_t y_begin) {
  const int64_t steps = x.size(0), rows = x.size(1), n = h.size(-1), gates = GatesOf(args.cell) * n, wide = y.size(2);
  const at::Tensor from_input = Products(args.weights, args.biases, 2 * part, args.bits)(x);
  Products of_state(args.weights, args.biases, 2 * part + 1, args.bits);
  const at::Tensor state = h.select(0, static_cast<int64_t>(part));
  TORCH_CHECK(from_input.size(-1) == gates, "recurrence: the weights give ", from_input.size(-1), " gates, not ",
              gates);
  float* const h_data = state.mutable_data_ptr<float>();
  float* const c_data = c.defined() ? c.mutable_data_ptr<float>() + static_cast<int64_t>(part) * rows * n : nullptr;
  float* const y_data = y.mutable_data_ptr<float>() + y_begin;
  for (int64_t i = 0; i < steps; ++i) {
    const int64_t step = is_reverse ? steps - 1 - i : i;
    const at::Tensor& from_state = of_state(state);
    TORCH_CHECK(from_state.size(-1) == gates, "recurrence: a state gives ", from_state.size(-1), " gates, not ", gates);
    const float* const a = from_input.const_data_ptr<float>() + step * rows * gates;
    const float* const b = from_state.const_data_ptr<float>();
    at::parallel_for(0, rows, std::max<int64_t>(1, kGrain / gates), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        StepRow(args.cell, a + row * gates, b + row * gates, n, h_data + row * n,
                c_data == nullptr ? nullptr : c_data + row * n, y_data + (step * rows + row) * wide);
      }
    });
  }
}

void CheckState(const at::Tensor& state, at::IntArrayRef sizes) {
  TORCH_CHECK(state.scalar_type() == at::kFloat && state.device().is_cpu() && state.sizes() == sizes,
              "recurrence: expected a state of float32 on the CPU of sizes ", sizes, ", got ", state.scalar_type(),
              " of ", state.sizes());
}

// A copy that the steps may write to.
at::Tensor StateFrom(const at::Tensor& state, at::IntArrayRef sizes) {
  CheckState(state, sizes);
  return state.clone(at::MemoryFormat::Contiguous);
}

// `x`: [steps, rows, features]. Returns the results of the last layer and the states, `c` only for an LSTM.
std::tuple<at::Tensor, at::Tensor, at::Tensor> Run(const Arguments& args, const at::Tensor& x, const at::Tensor& h0,
                                                   const at::Tensor& c0) {
  TORCH_CHECK(x.dim() == 3 && x.scalar_type() == at::kFloat && x.device().is_cpu() && x.size(0) > 0,
              "recurrence: expected a sequence of float32 on the CPU, got ", x.scalar_type(), " of sizes ", x.sizes());
  const auto parts = static_cast<int64_t>(args.weights.size() / 2);
  const int64_t directions = args.is_bidirectional ? 2 : 1, n = h0.size(-1);
  const at::Tensor h = StateFrom(h0, {parts, x.size(1), n});
  const at::Tensor c = c0.defined() ? StateFrom(c0, {parts, x.size(1), n}) : at::Tensor();
  at::Tensor layer = x.contiguous();
  for (int64_t first = 0; first < parts; first += directions) {
    const at::Tensor y = at::detail::empty_cpu({x.size(0), x.size(1), directions * n}, at::kFloat);
    for (int64_t d = 0; d < directions; ++d) {
      RunPart(args, static_cast<size_t>(first + d), layer, h, c, d == 1, y, d * n);
    }
    layer = y;
  }
  return {layer, h, c};
}

// N3
at::Tensor InOrder(const at::Tensor& steps, bool is_batch_first) {
  return is_batch_first ? steps.transpose(0, 1) : steps;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> RunLstm(const at::Tensor& x, at::TensorList state,
                                                       at::TensorList weights, at::TensorList biases, int64_t bits,
                                                       bool is_bidirectional, bool is_batch_first) {
  TORCH_CHECK(state.size() == 2, "recurrence: an LSTM has two states");
  auto [y, h, c] =
      Run({Cell::kLstm, weights, biases, bits, is_bidirectional}, InOrder(x, is_batch_first), state[0], state[1]);
  return {InOrder(y, is_batch_first), h, c};
}

std::tuple<at::Tensor, at::Tensor> RunSteps(const at::Tensor& x, const at::Tensor& state, at::TensorList weights,
                                            at::TensorList biases, int64_t bits, int64_t cell, bool is_bidirectional,
                                            bool is_batch_first) {
  auto [y, h, c] = Run({static_cast<Cell>(cell), weights, biases, bits, is_bidirectional}, InOrder(x, is_batch_first),
                       state, at::Tensor());
  return {InOrder(y, is_batch_first), h};
}

// A cell as a sequence of one step. Images of one row may come without a batch.
at::Tensor AsSteps(const at::Tensor& x) { return x.dim() == 1 ? x.unsqueeze(0).unsqueeze(0) : x.unsqueeze(0); }
at::Tensor Like(const at::Tensor& steps, const at::Tensor& x) {
  return x.dim() == 1 ? steps.squeeze(0).squeeze(0) : steps.squeeze(0);
}

std::tuple<at::Tensor, at::Tensor> RunLstmCell(const at::Tensor& x, at::TensorList state, at::TensorList weights,
                                               at::TensorList biases, int64_t bits) {
  TORCH_CHECK(state.size() == 2, "recurrence: an LSTM has two states");
  auto [y, h, c] = Run({Cell::kLstm, weights, biases, bits, false}, AsSteps(x), AsSteps(state[0]), AsSteps(state[1]));
  return {Like(h, x), Like(c, x)};
}

at::Tensor RunCell(const at::Tensor& x, const at::Tensor& state, at::TensorList weights, at::TensorList biases,
                   int64_t bits, int64_t cell) {
  auto [y, h, c] =
      Run({static_cast<Cell>(cell), weights, biases, bits, false}, AsSteps(x), AsSteps(state), at::Tensor());
  return Like(h, x);
}

std::optional<ValueId> OptionalTensor(const Node& node, const char* name, std::string* why) {
  const Arg* arg = FindArg(node, name);
  if (arg == nullptr || IsNone(arg)) return ValueId();
  if (arg->kind == Arg::Kind::kValue) return arg->value;
  *why = "its weights are not parameters";
  return std::nullopt;
}

bool TakeStep(const Node& node, Recurrence* to, std::string* why) {
  RecurrentPart part;
  for (const auto& [name, value] : {std::pair("w_ih", &part.input_weight), std::pair("w_hh", &part.state_weight),
                                    std::pair("b_ih", &part.input_bias), std::pair("b_hh", &part.state_bias)}) {
    const auto found = OptionalTensor(node, name, why);
    if (!found) return false;
    *value = *found;
  }
  to->parts.push_back(part);
  return true;
}

bool TakeSequence(const Node& node, Recurrence* to, std::string* why) {
  const auto has_biases = ConstBool(FindArg(node, "has_biases"));
  const auto layers = ConstInt(FindArg(node, "num_layers"));
  const auto both = ConstBool(FindArg(node, "bidirectional")), batch_first = ConstBool(FindArg(node, "batch_first"));
  const auto dropout = ConstNumber(FindArg(node, "dropout"));
  const auto train = ConstBool(FindArg(node, "train"));
  const Arg* const params = FindArg(node, "params");
  if (!has_biases || !layers || !both || !batch_first || !dropout || !train || params->kind != Arg::Kind::kList) {
    *why = "its arguments are not constant";
    return false;
  }
  if (*train && *dropout != 0) {
    *why = "dropout in training mode; call eval() before capturing";
    return false;
  }
  const size_t each = *has_biases ? 4 : 2, parts = static_cast<size_t>(*layers) * (*both ? 2 : 1);
  if (params->items.size() != parts * each) {
    *why = "its states are projected";
    return false;
  }
  to->is_bidirectional = *both;
  to->is_batch_first = *batch_first;
  for (size_t i = 0; i < params->items.size(); i += each) {
    std::array<ValueId, 4> values{};
    for (size_t k = 0; k < each; ++k) {
      if (params->items[i + k].kind == Arg::Kind::kValue) values[k] = params->items[i + k].value;
    }
    to->parts.push_back({values[0], values[1], values[2], values[3]});
  }
  return true;
}

bool IsFrozenFloat(const NormalizedGraph& normal, ValueId v) {
  if (!v.valid()) return false;
  const at::Tensor& tensor = normal.known[v.raw()];
  return tensor.defined() && tensor.scalar_type() == at::kFloat && tensor.device().is_cpu() && tensor.numel() > 0;
}

bool AreFrozen(const NormalizedGraph& normal, const RecurrentPart& part) {
  const auto is_bias = [&](ValueId v) { return !v.valid() || IsFrozenFloat(normal, v); };
  return IsFrozenFloat(normal, part.input_weight) && IsFrozenFloat(normal, part.state_weight) &&
         is_bias(part.input_bias) && is_bias(part.state_bias) && part.input_bias.valid() == part.state_bias.valid();
}

}  // namespace

std::optional<Recurrence> RecurrenceOf(const NormalizedGraph& normal, const Node& node, std::string* why) {
  const Spelling* const spelling = SpellingOf(node);
  if (spelling == nullptr) {
    *why = "only sequences of one length have a kernel";
    return std::nullopt;
  }
  bool is_float = true;
  ForEachUse(node.args, [&](ValueId v) { is_float = is_float && IsFloatTensor(normal.graph.value(v).type); });
  if (!is_float) {
    *why = "it does not compute in float32 on the CPU";
    return std::nullopt;
  }
  Recurrence found;
  found.cell = spelling->cell;
  found.is_step = spelling->is_step;
  if (!(spelling->is_step ? TakeStep(node, &found, why) : TakeSequence(node, &found, why))) return std::nullopt;
  const bool are_frozen = std::all_of(found.parts.begin(), found.parts.end(),
                                      [&](const RecurrentPart& part) { return AreFrozen(normal, part); });
  if (!are_frozen) {
    *why = "its weights are not parameters or buffers of float32";
    return std::nullopt;
  }
  return found;
}

Node AsOurs(Node node, const Recurrence& recurrence, std::vector<Arg> args, std::vector<Arg> weights,
            std::vector<Arg> biases, int bits) {
  const bool is_lstm = recurrence.cell == Cell::kLstm;
  node.args = {std::move(args[0]), std::move(args[1]), Arg::List(std::move(weights)), Arg::List(std::move(biases)),
               Arg::Const(int64_t{bits})};
  if (!is_lstm) node.args.push_back(Arg::Const(static_cast<int64_t>(recurrence.cell)));
  if (!recurrence.is_step) {
    node.args.push_back(Arg::Const(recurrence.is_bidirectional));
    node.args.push_back(Arg::Const(recurrence.is_batch_first));
  }
  node.op = FindOperator(recurrence.is_step ? is_lstm ? "frametap::lstm_cell" : "frametap::rnn_cell"
                         : is_lstm          ? "frametap::lstm"
                                            : "frametap::rnn");
  return node;
}

Sizes RowsOfProduct(const Graph& graph, const Node& node, size_t i, const onednn::Layer& layer) {
  ValueId rows_of;
  ForEachUse({node.args[i % 2]}, [&](ValueId v) { rows_of = v; });
  const Sizes& sizes = graph.value(rows_of).type.sizes;
  int64_t rows = 1;
  // The first dimension of a state counts layers, if there are three.
  for (size_t k = i % 2 == 1 && sizes.size() == 3 ? 1 : 0; k + 1 < sizes.size(); ++k) rows *= sizes[k];
  return {rows, layer.inputs()};
}

bool IsRecurrence(const Node& node) {
  return Is(node, "frametap::lstm") || Is(node, "frametap::rnn") || Is(node, "frametap::lstm_cell") ||
         Is(node, "frametap::rnn_cell");
}

void RegisterRecurrentOperators() {
  auto* defs = new torch::Library(torch::Library::FRAGMENT, "frametap", std::nullopt, __FILE__, __LINE__);
  defs->def(
      "lstm(Tensor x, Tensor[] state, Tensor[] weights, Tensor[] biases, int bits, bool bidirectional, "
      "bool batch_first) -> (Tensor, Tensor, Tensor)");
  defs->def(
      "rnn(Tensor x, Tensor state, Tensor[] weights, Tensor[] biases, int bits, int cell, bool bidirectional, "
      "bool batch_first) -> (Tensor, Tensor)");
  defs->def("lstm_cell(Tensor x, Tensor[] state, Tensor[] weights, Tensor[] biases, int bits) -> (Tensor, Tensor)");
  defs->def("rnn_cell(Tensor x, Tensor state, Tensor[] weights, Tensor[] biases, int bits, int cell) -> Tensor");
  auto* cpu = new torch::Library(torch::Library::IMPL, "frametap", c10::DispatchKey::CPU, __FILE__, __LINE__);
  cpu->impl("lstm", TORCH_FN(RunLstm));
  cpu->impl("rnn", TORCH_FN(RunSteps));
  cpu->impl("lstm_cell", TORCH_FN(RunLstmCell));
  cpu->impl("rnn_cell", TORCH_FN(RunCell));
}

}  // namespace frametap::quant
