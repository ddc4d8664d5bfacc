// plan/P5 for int8 graphs: runs share kernels, scales and biases, and no run changes them.
// Laws: only_reads/K1, only_reads/K2, plan/P5
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_split.h"
#include "backends/backend.h"
#include "backends/native/plan.h"
#include "backends/quant/kernel_tensor.h"
#include "backends/quant/operators.h"
#include "backends/quant/quantize.h"
#include "ir/ops/only_reads.h"
#include "tests/unit/quant_graph_maker.h"

namespace frametap::quant {
namespace {

c10::OperatorHandle Find(const std::string& name) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(name, absl::MaxSplits('.', 1));
  return c10::Dispatcher::singleton().findSchemaOrThrow(parts.first.c_str(), parts.second.c_str());
}

// A copy of a tensor's memory; an int8 kernel has none.
at::Tensor Dense(const at::Tensor& t) { return KernelIn(t) != nullptr ? at::Tensor() : t.clone(); }

bool IsSame(const at::Tensor& t, const at::Tensor& before) {
  return before.defined() ? t.equal(before) : KernelIn(t) != nullptr;
}

at::Tensor Bytes(at::IntArrayRef sizes) { return at::randint(0, 255, sizes, at::kByte); }

// Arguments for which giving an operand back would be easiest: layouts as the kernel wants them, windows of one.
std::vector<c10::IValue> ArgsFor(const std::string& op) {
  const std::vector<int64_t> one{1, 1}, zero{0, 0};
  const int64_t byte = static_cast<int64_t>(at::kByte);
  const at::Tensor image = Bytes({1, 8, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor weight = at::randint(-128, 127, {8, 8, 1, 1}, at::kChar);
  const at::Tensor scales = at::ones({8}).mul(0.01);
  const at::Tensor zeros = at::zeros({8}, at::kLong);
  onednn::Layer layer;
  layer.weight = weight;
  layer.scales = scales;
  layer.bias = at::randn({8});
  layer.x.scale = 0.1f;
  layer.out = onednn::Quantization{0.1f, 0};
  layer.curve = onednn::Curve::kRelu;
  if (op == "frametap::dequantize_per_channel") return {weight, scales, zeros, 0};
  if (op == "frametap::dequantize_per_tensor") return {image, 0.1, 3};
  if (op == "frametap::qadaptive_avg_pool2d") return {image, 0.1, 3, 0.05, 2, 0, 255, std::vector<int64_t>{4, 4}};
  if (op == "frametap::qmul") return {image, 3, Bytes({1, 8, 4, 4}), 3, 0.01, 0.2, 3, 0, 255};
  if (op == "frametap::qadd") return {image, 0.1, 3, Bytes({1, 8, 4, 4}), 0.1, 3, 0.2, 3, 0, 255, false};
  if (op == "frametap::qavg_pool2d")
    return {image, 0.1, 3, 0.05, 2, 0, 255, one, one, zero, false, true, c10::IValue()};
  if (op == "frametap::upsample_bilinear2d") return {image, c10::IValue(), false, std::vector<double>{2, 2}};
  if (op == "frametap::adaptive_avg_pool2d") {
    return {at::randn({1, 8, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast), std::vector<int64_t>{4, 4}};
  }
  if (op == "frametap::cat") return {std::vector<at::Tensor>{image}, 1};
  if (op == "frametap::max_pool2d") return {image, one, one, zero, one, false};
  if (op == "frametap::quantize_per_tensor" || op == "frametap::quantize_per_tensor_channels_last") {
    return {at::randn({1, 8, 4, 4}), 0.1, 3, 0, 255, byte};
  }
  if (op == "frametap::qconv") return {image, MakeKernelTensor(layer)};
  if (op == "frametap::qconv_add") {
    layer.accumulator = onednn::Quantization{0.1f, 0};
    return {image, Bytes({1, 8, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast), MakeKernelTensor(layer)};
  }
  if (op == "frametap::qlinear") {
    layer.weight = weight.view({8, 8});
    return {Bytes({4, 8}), MakeKernelTensor(layer)};
  }
  if (op == "frametap::qcurve") return {image, Bytes({256})};
  onednn::Layer floats;
  floats.weight = at::randn({8, 8});
  if (op == "frametap::bfloat16_attention" || op == "frametap::scaled_dot_product_attention") {  // of one key
    const auto one_key = [] { return at::randn({1, 1, 1, 8}).to(at::kBFloat16); };
    return {one_key(), one_key(), one_key(), c10::IValue(), 0.0, false, c10::IValue(), false};
  }
  if (op == "frametap::attention_chain" || op == "frametap::bfloat16_attention_chain") {
    const auto one_key = [] { return at::randn({1, 1, 1, 8}).to(at::kBFloat16); };
    return {one_key(), one_key(), one_key(), c10::IValue(), 0.0, 1.0};
  }
  if (op == "frametap::layer_norm" || op == "frametap::layer_norm_to_bfloat16" ||
      op == "frametap::layer_norm_with_bfloat16") {
    return {at::randn({4, 8}), std::vector<int64_t>{8}, at::randn({8}), at::randn({8}), 1e-5, false};
  }
  if (op == "frametap::layer_norm_to_bytes" || op == "frametap::layer_norm_with_bytes") {
    return {at::randn({4, 8}), std::vector<int64_t>{8}, at::randn({8}), at::randn({8}), 1e-5, 0.1, 3, 0, 255};
  }
  if (op == "frametap::round_rows") return {at::randn({4, 8}), 8};
  if (op == "frametap::dynamic_linear") return {at::randn({4, 8}), FrozenDynamicKernel(nullptr, floats, {7}, {4, 8})};
  floats.has_addend = true;
  if (op == "frametap::packed_linear") return {at::randn({4, 8}), MakeKernelTensor(floats), at::randn({4, 8})};
  if (op == "frametap::packed_conv") {
    floats.weight = floats.weight.view({8, 8, 1, 1});
    const auto images = [] { return at::randn({1, 8, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast); };
    return {images(), MakeKernelTensor(floats), images()};
  }
  ADD_FAILURE() << "no arguments for " << op;
  return {};
}

TEST(OnlyReads, K1_KernelsLeaveTheirOperandsAlone) {
  RegisterOperators();
  for (const std::string& name : OpsOutsideAtenThatOnlyRead()) {
    SCOPED_TRACE(name);
    const c10::OperatorHandle op = Find(name);
    const std::vector<c10::IValue> args = ArgsFor(name);
    ASSERT_EQ(args.size(), op.schema().arguments().size());
    std::vector<std::pair<at::Tensor, at::Tensor>> read;  // an operand, and a copy of it
    for (size_t i = 0; i < args.size(); ++i) {
      EXPECT_EQ(OnlyReads(op, i), op.schema().arguments()[i].alias_info() == nullptr);
      if (args[i].isTensor() && OnlyReads(op, i)) read.emplace_back(args[i].toTensor(), Dense(args[i].toTensor()));
    }
    torch::jit::Stack stack = args;
    op.callBoxed(stack);
    const at::Tensor result = stack[0].toTensor();
    for (const auto& [operand, before] : read) {
      EXPECT_TRUE(IsSame(operand, before));
      EXPECT_FALSE(result.is_same(operand));
      EXPECT_FALSE(operand.has_storage() && result.is_alias_of(operand));
      EXPECT_EQ(operand.use_count(),
                std::count_if(args.begin(), args.end(),
                              [&](const c10::IValue& v) { return v.isTensor() && v.toTensor().is_same(operand); }) +
                    1)
          << "kept";
    }
  }
}

TEST(OnlyReads, K2_OthersAreJudgedByTheirSchemas) {
  RegisterOperators();
  EXPECT_TRUE(OnlyReads(Find("aten::add.Tensor"), 0));
  EXPECT_FALSE(OnlyReads(Find("aten::add_.Tensor"), 0));
  EXPECT_FALSE(OnlyReads(Find("aten::t"), 0));
  EXPECT_FALSE(OnlyReads(Find("aten::contiguous"), 0));
  EXPECT_FALSE(OnlyReads(Find("aten::batch_norm"), 3));
  EXPECT_FALSE(OnlyReads(Find("quantized::linear"), 0));
  EXPECT_FALSE(OnlyReads(Find("frametap::qconv_add"), 1));
}

int Copies(const Graph& graph) {
  const Plan plan = MakePlan(graph, FindRepeats(graph), true);
  return static_cast<int>(std::count_if(plan.steps.begin(), plan.steps.end(), [](const PlannedStep& step) {
    return step.kind == PlannedStep::Kind::kCopyConstant;
  }));
}

TEST(OnlyReads, P5_RunsOfAnInt8GraphShareItsConstants) {
  at::manual_seed(7);
  GraphMaker m;
  const at::Tensor x = at::randn({1, 3, 16, 16});
  ValueId v = m.MaxPool(m.Relu(m.BatchNorm(m.Conv(m.Input(x), 16, 3, 1, 1))), 3, 2, 1);
  v = m.Relu(m.Sum(m.BatchNorm(m.Conv(m.Relu(m.Conv(v, 16, 3, 1, 1)), 16, 3, 1, 1)), v));
  m.graph.outputs = {m.Linear(m.Relu(m.Linear(m.Flatten(m.GlobalPool(v)), 10)), 5)};
  auto observation = std::make_shared<Observation>();
  auto observing = MakeObservingExecutable(m.graph, m.weights, observation);
  ASSERT_TRUE(observing.ok());
  (*observing)->Run(m.Inputs({x}));
  const auto quantized = Convert(m.graph, m.weights, *observation, {});
  ASSERT_TRUE(quantized.ok()) << quantized.status();
  for (const Graph* graph : {&quantized->reference, &quantized->lowered}) {
    EXPECT_EQ(Copies(*graph), 0);
    EXPECT_GE(graph->constants.size(), graph == &quantized->reference ? 10u : 5u);
    std::vector<at::Tensor> before;
    for (const auto& [id, tensor] : graph->constants) before.push_back(Dense(tensor));
    const auto native = MakeNativeBackend()->Compile(*graph);
    const auto reference = MakeReferenceBackend()->Compile(*graph);
    ASSERT_TRUE(native.ok() && reference.ok());
    for (int run = 0; run < 3; ++run) {
      const std::vector<c10::IValue> inputs = m.Inputs({at::randn({1, 3, 16, 16})});
      at::Tensor got = (*native)->Run(inputs)[0].toTensor();
      EXPECT_TRUE(got.equal((*reference)->Run(inputs)[0].toTensor()));
      got.zero_();
    }
    for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(IsSame(graph->constants[i].second, before[i]));
  }
}

}  // namespace
}  // namespace frametap::quant
