#include "backends/quant/op_table.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"

namespace frametap::quant {
namespace {

constexpr const char* kNorm = "a normalisation keeps its statistics in float; the op after it quantizes its result";
constexpr const char* kProduct =
    "only the product of an activation and a frozen matrix (a parameter or buffer) on its right is int8 here";
constexpr const char* kProbabilities = "probabilities need more than 8 bits; it usually ends the model";
constexpr const char* kLookup = "a table look-up moves data only; int8 rows would need a weight-only scheme";

constexpr OpRow kRows[] = {
    {"aten::conv2d", "", Family::kConv, true, nullptr},
    {"aten::conv2d", "padding", Family::kConv, true, nullptr},
    {"aten::conv1d", "", Family::kConv, true, nullptr},
    {"aten::conv1d", "padding", Family::kConv, true, nullptr},
    {"aten::conv3d", "", Family::kConv, true, nullptr},
    {"aten::conv3d", "padding", Family::kConv, true, nullptr},
    {"aten::conv_transpose1d", "", Family::kConv, true, nullptr},
    {"aten::conv_transpose2d", "input", Family::kConv, true, nullptr},
    {"aten::conv_transpose3d", "input", Family::kConv, true, nullptr},
    {"aten::convolution", "", Family::kConv, true, nullptr},  // of AOTAutograd, for all of these
    {"aten::linear", "", Family::kLinear, true, nullptr},
    {"aten::lstm", "input", Family::kRecurrent, true, nullptr},
    {"aten::lstm", "data", Family::kRecurrent, true, nullptr},
    {"aten::gru", "input", Family::kRecurrent, true, nullptr},
    {"aten::gru", "data", Family::kRecurrent, true, nullptr},
    {"aten::rnn_tanh", "input", Family::kRecurrent, true, nullptr},
    {"aten::rnn_tanh", "data", Family::kRecurrent, true, nullptr},
    {"aten::rnn_relu", "input", Family::kRecurrent, true, nullptr},
    {"aten::rnn_relu", "data", Family::kRecurrent, true, nullptr},
    {"aten::lstm_cell", "", Family::kRecurrent, true, nullptr},
    {"aten::gru_cell", "", Family::kRecurrent, true, nullptr},
    {"aten::rnn_tanh_cell", "", Family::kRecurrent, true, nullptr},
    {"aten::rnn_relu_cell", "", Family::kRecurrent, true, nullptr},
    {"aten::add", "Tensor", Family::kAdd, true, nullptr},
    {"aten::sub", "Tensor", Family::kAdd, true, nullptr},
    {"aten::mul", "Tensor", Family::kMul, true, nullptr},
    {"aten::relu", "", Family::kRelu, true, nullptr},
    {"aten::hardtanh", "", Family::kCurve, true, nullptr},
    {"aten::relu6", "", Family::kCurve, true, nullptr},
    {"aten::hardswish", "", Family::kCurve, true, nullptr},
    {"aten::silu", "", Family::kCurve, true, nullptr},
    {"aten::gelu", "", Family::kCurve, true, nullptr},
    {"aten::sigmoid", "", Family::kCurve, true, nullptr},
    {"aten::hardsigmoid", "", Family::kCurve, true, nullptr},
    {"aten::tanh", "", Family::kCurve, true, nullptr},
    {"aten::leaky_relu", "", Family::kCurve, true, nullptr},
    {"aten::elu", "", Family::kCurve, true, nullptr},
    {"aten::mish", "", Family::kCurve, true, nullptr},
    {"aten::softplus", "", Family::kCurve, true, nullptr},
    {"aten::selu", "", Family::kCurve, true, nullptr},
    {"aten::celu", "", Family::kCurve, true, nullptr},
    {"aten::log_sigmoid", "", Family::kCurve, true, nullptr},
    {"aten::hardshrink", "", Family::kCurve, true, nullptr},
    {"aten::softshrink", "", Family::kCurve, true, nullptr},
    {"aten::threshold", "", Family::kCurve, true, nullptr},
    {"aten::clamp", "", Family::kCurve, true, nullptr},
    {"aten::clamp_min", "", Family::kCurve, true, nullptr},
    {"aten::clamp_max", "", Family::kCurve, true, nullptr},
    {"aten::neg", "", Family::kCurve, true, nullptr},
    {"aten::abs", "", Family::kCurve, true, nullptr},
    {"aten::rsub", "Scalar", Family::kCurve, true, nullptr},
    {"aten::max_pool2d", "", Family::kMaxPool, true, nullptr},
    {"aten::avg_pool2d", "", Family::kAvgPool, true, nullptr},
    {"aten::adaptive_avg_pool2d", "", Family::kAdaptivePool, true, nullptr},
    {"aten::mean", "dim", Family::kMean, true, nullptr},
    {"aten::flatten", "using_ints", Family::kShape, false, nullptr},
    {"aten::view", "", Family::kShape, false, nullptr},
    {"aten::reshape", "", Family::kShape, false, nullptr},
    {"aten::permute", "", Family::kShape, false, nullptr},
    {"aten::transpose", "int", Family::kShape, false, nullptr},
    {"aten::t", "", Family::kShape, false, nullptr},
    {"aten::numpy_T", "", Family::kShape, false, nullptr},
    {"aten::mT", "", Family::kShape, false, nullptr},
    {"aten::swapaxes", "", Family::kShape, false, nullptr},
    {"aten::swapdims", "", Family::kShape, false, nullptr},
    {"aten::movedim", "int", Family::kShape, false, nullptr},
    {"aten::movedim", "intlist", Family::kShape, false, nullptr},
    {"aten::unflatten", "int", Family::kShape, false, nullptr},
    {"aten::detach", "", Family::kShape, false, nullptr},
    {"aten::alias", "", Family::kShape, false, nullptr},
    {"aten::contiguous", "", Family::kShape, false, nullptr},
    {"aten::squeeze", "", Family::kShape, false, nullptr},
    {"aten::squeeze", "dim", Family::kShape, false, nullptr},
    {"aten::squeeze", "dims", Family::kShape, false, nullptr},
    {"aten::unsqueeze", "", Family::kShape, false, nullptr},
    {"aten::select", "int", Family::kShape, false, nullptr},
    {"frametap::chunk_piece", "", Family::kShape, false, nullptr},
    {"aten::slice", "Tensor", Family::kShape, false, nullptr},
    {"aten::narrow", "", Family::kShape, false, nullptr},
    {"aten::flip", "", Family::kMove, false, nullptr},
    {"aten::roll", "", Family::kMove, false, nullptr},
    {"aten::pad", "", Family::kMove, false, nullptr},
    {"aten::constant_pad_nd", "", Family::kMove, false, nullptr},
    {"aten::pixel_shuffle", "", Family::kMove, false, nullptr},
    {"aten::pixel_unshuffle", "", Family::kMove, false, nullptr},
    {"aten::channel_shuffle", "", Family::kMove, false, nullptr},
    {"aten::expand", "", Family::kMove, false, nullptr},
    {"aten::repeat", "", Family::kMove, false, nullptr},
    {"aten::tile", "", Family::kMove, false, nullptr},
    {"aten::repeat_interleave", "self_int", Family::kMove, false, nullptr},
    {"aten::upsample_nearest1d", "vec", Family::kMove, false, nullptr},
    {"aten::upsample_nearest2d", "vec", Family::kMove, false, nullptr},
    {"aten::upsample_nearest3d", "vec", Family::kMove, false, nullptr},
    {"aten::_upsample_nearest_exact1d", "vec", Family::kMove, false, nullptr},
    {"aten::_upsample_nearest_exact2d", "vec", Family::kMove, false, nullptr},
    {"aten::_upsample_nearest_exact3d", "vec", Family::kMove, false, nullptr},
    {"aten::upsample_bilinear2d", "vec", Family::kMove, false, nullptr},
    {"aten::cat", "", Family::kCat, true, nullptr},
    {"aten::stack", "", Family::kCat, true, nullptr},
    {"aten::batch_norm", "", Family::kBatchNorm, true, nullptr},
    {"aten::_native_batch_norm_legit_no_training", "", Family::kBatchNorm, true, nullptr},
    {"aten::dropout", "", Family::kDropout, false, nullptr},
    {"aten::dropout_", "", Family::kDropout, false, nullptr},
    {"aten::feature_dropout", "", Family::kDropout, false, nullptr},
    {"aten::feature_dropout_", "", Family::kDropout, false, nullptr},
    {"aten::alpha_dropout", "", Family::kDropout, false, nullptr},
    {"aten::alpha_dropout_", "", Family::kDropout, false, nullptr},
    {"aten::feature_alpha_dropout", "", Family::kDropout, false, nullptr},
    {"aten::feature_alpha_dropout_", "", Family::kDropout, false, nullptr},
    {"aten::layer_norm", "", Family::kFloat, true, kNorm},
    {"aten::group_norm", "", Family::kFloat, true, kNorm},
    {"aten::instance_norm", "", Family::kFloat, true, kNorm},
    {"aten::matmul", "", Family::kFloat, true, kProduct},
    {"aten::mm", "", Family::kFloat, true, kProduct},
    {"aten::bmm", "", Family::kFloat, true, kProduct},
    {"aten::addmm", "", Family::kFloat, true,
     "only addmm with a frozen weight and a frozen bias of one dimension is int8"},
    {"aten::einsum", "", Family::kFloat, false,
     "only the einsum of an activation and a frozen matrix is int8, if its result has one order in memory for all "
     "sizes"},
    {"aten::scaled_dot_product_attention", "", Family::kFloat, true, kProduct},
    {"frametap::attention_chain", "", Family::kFloat, true, kProduct},
    {"aten::softmax", "int", Family::kFloat, true, kProbabilities},
    {"aten::_softmax", "", Family::kFloat, true, kProbabilities},
    {"aten::log_softmax", "int", Family::kFloat, true, kProbabilities},
    {"aten::div", "Tensor", Family::kFloat, true, "no int8 kernel for a quotient of tensors"},
    {"aten::embedding", "", Family::kFloat, true, kLookup},
    // The ops that this backend itself emits.
    {"aten::clone", "", Family::kFloat, true, nullptr},
    {"frametap::state", "", Family::kFloat, false, nullptr},
    {"frametap::laid_out", "", Family::kFloat, false, nullptr},
    {"frametap::pixels", "", Family::kFloat, false, nullptr},
    {"frametap::planes", "", Family::kFloat, false, nullptr},
    {"frametap::quantize_per_tensor", "", Family::kFloat, true, nullptr},
    {"frametap::quantize_per_tensor_channels_last", "", Family::kFloat, true, nullptr},
    {"frametap::dequantize_per_tensor", "", Family::kFloat, true, nullptr},
    {"frametap::dequantize_per_channel", "", Family::kFloat, true, nullptr},
    {"frametap::round_rows", "", Family::kFloat, true, nullptr},
    {"frametap::qadd", "", Family::kFloat, true, nullptr},
    {"frametap::qmul", "", Family::kFloat, true, nullptr},
    {"frametap::qcurve", "", Family::kFloat, true, nullptr},
    {"frametap::cat", "", Family::kFloat, true, nullptr},
    {"frametap::max_pool2d", "", Family::kFloat, true, nullptr},
    {"frametap::qavg_pool2d", "", Family::kFloat, true, nullptr},
    {"frametap::qadaptive_avg_pool2d", "", Family::kFloat, true, nullptr},
    {"frametap::upsample_bilinear2d", "", Family::kFloat, true, nullptr},
    {"frametap::qconv", "", Family::kFloat, true, nullptr},
    {"frametap::qlinear", "", Family::kFloat, true, nullptr},
    {"frametap::packed_conv", "", Family::kFloat, true, nullptr},
    {"frametap::packed_linear", "", Family::kFloat, true, nullptr},
    {"frametap::dynamic_linear", "", Family::kFloat, true, nullptr},
    {"frametap::lstm", "", Family::kFloat, true, nullptr},
    {"frametap::rnn", "", Family::kFloat, true, nullptr},
    {"frametap::lstm_cell", "", Family::kFloat, true, nullptr},
    {"frametap::rnn_cell", "", Family::kFloat, true, nullptr},
};

struct HashName {
  size_t operator()(const c10::OperatorName& n) const { return std::hash<c10::OperatorName>()(n); }
};

}  // namespace

static const OpRow* RowNamed(const c10::OperatorName& op) {
  static const auto* const table = [] {
    auto* t = new absl::flat_hash_map<c10::OperatorName, const OpRow*, HashName>();
    for (const OpRow& row : kRows) t->emplace(c10::OperatorName(row.name, row.overload), &row);
    return t;
  }();
  const auto it = table->find(op);
  return it == table->end() ? nullptr : it->second;
}

Family FamilyOf(const Node& node) {
  const OpRow* const row = RowOf(node);
  if (row == nullptr) return Family::kFloat;
  const bool is_pair = row->family == Family::kAdd || row->family == Family::kMul || Is(node, "aten::div", "Tensor");
  return is_pair && ConstNumber(FindArg(node, "other")) ? Family::kCurve : row->family;
}

bool IsByteFamily(Family f) {
  switch (f) {
    case Family::kAdd:
    case Family::kMul:
    case Family::kCurve:
    case Family::kRelu:
    case Family::kMaxPool:
    case Family::kAvgPool:
    case Family::kAdaptivePool:
    case Family::kMean:
    case Family::kShape:
    case Family::kMove:
    case Family::kCat:
      return true;
    default:
      return false;
  }
}

const OpRow* RowOf(const Node& node) { return node.op ? RowNamed(node.op->operator_name()) : nullptr; }

bool IsLayer(const c10::OperatorName& op) {
  const OpRow* row = RowNamed(op);
  return row != nullptr && (row->family == Family::kConv || row->family == Family::kLinear);
}

bool IsLayer(const Node& node) { return node.op && IsLayer(node.op->operator_name()); }

const Arg* FindArg(const Node& node, const char* name) {
  if (!node.op) return nullptr;
  const auto& arguments = node.op->schema().arguments();
  for (size_t i = 0; i < arguments.size() && i < node.args.size(); ++i) {
    if (arguments[i].name() == name) return &node.args[i];
  }
  return nullptr;
}

std::optional<std::vector<int64_t>> ConstInts(const Arg* arg) {
  if (arg == nullptr) return std::nullopt;
  if (arg->kind == Arg::Kind::kList) {
    std::vector<int64_t> out;
    for (const Arg& item : arg->items) {
      if (item.kind != Arg::Kind::kConst || !item.constant.isInt()) return std::nullopt;
      out.push_back(item.constant.toInt());
    }
    return out;
  }
  if (arg->kind != Arg::Kind::kConst) return std::nullopt;
  const c10::IValue& v = arg->constant;
  if (v.isInt()) return std::vector<int64_t>{v.toInt()};
  if (v.isIntList()) return v.toIntVector();
  if (v.isList()) {
    std::vector<int64_t> out;
    for (const c10::IValue& item : v.toListRef()) {
      if (!item.isInt()) return std::nullopt;
      out.push_back(item.toInt());
    }
    return out;
  }
  return std::nullopt;
}

std::optional<int64_t> ConstInt(const Arg* arg) {
  if (arg == nullptr || arg->kind != Arg::Kind::kConst || !arg->constant.isInt()) return std::nullopt;
  return arg->constant.toInt();
}

std::optional<bool> ConstBool(const Arg* arg) {
  if (arg == nullptr || arg->kind != Arg::Kind::kConst || !arg->constant.isBool()) return std::nullopt;
  return arg->constant.toBool();
}

std::optional<double> ConstNumber(const Arg* arg) {
  if (arg == nullptr || arg->kind != Arg::Kind::kConst) return std::nullopt;
  if (arg->constant.isInt()) return static_cast<double>(arg->constant.toInt());
  if (arg->constant.isDouble()) return arg->constant.toDouble();
  return std::nullopt;
}

bool IsNone(const Arg* arg) { return arg != nullptr && arg->kind == Arg::Kind::kConst && arg->constant.isNone(); }

std::optional<ValueId> TensorArg(const Node& node, const char* name) {
  const Arg* arg = FindArg(node, name);
  if (arg == nullptr || arg->kind != Arg::Kind::kValue) return std::nullopt;
  return arg->value;
}

std::vector<ValueId> ActivationsOf(const Node& node) {
  const Family family = FamilyOf(node);
  std::vector<ValueId> out;
  if (family == Family::kCat) {
    ForEachUse({node.args[0]}, [&](ValueId v) { out.push_back(v); });
  } else if (family == Family::kAdd || family == Family::kMul) {
    for (const char* name : {"self", "other"}) {
      if (const auto v = TensorArg(node, name)) out.push_back(*v);
    }
  } else if (!node.args.empty() && node.args[0].kind == Arg::Kind::kValue) {
    out.push_back(node.args[0].value);
  }
  return out;
}

bool IsMeanOverImage(const Node& node, size_t input_rank) {
  auto dims = ConstInts(FindArg(node, "dim"));
  if (!dims || !IsNone(FindArg(node, "dtype")) || input_rank != 4) return false;
  for (int64_t& d : *dims) d = d < 0 ? d + 4 : d;
  std::sort(dims->begin(), dims->end());
  return *dims == std::vector<int64_t>{2, 3};
}

bool PadsWithNumber(const Node& node) {
  if (FindArg(node, "value") == nullptr) return false;
  const Arg* mode = FindArg(node, "mode");
  return mode == nullptr || mode->kind != Arg::Kind::kConst || !mode->constant.isString() ||
         mode->constant.toStringRef() == "constant";
}

bool PadsWithZero(const Node& node) {
  const Arg* value = FindArg(node, "value");
  return !PadsWithNumber(node) || IsNone(value) || ConstNumber(value) == 0.0;
}

bool Is(const Node& node, const char* name, const char* overload) {
  return node.op && node.op->operator_name().name == name && node.op->operator_name().overload_name == overload;
}

}  // namespace frametap::quant
