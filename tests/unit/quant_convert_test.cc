// From a float graph to int8 and back to numbers. The reference is near the float graph, and the lowered graph is within a
// few steps of the reference. Every op is accounted for.
// Laws: accumulators/B1, lower/L3, normalise/M1, normalise/M3, quantize/Q1, quantize/Q3
#include <ATen/Context.h>
#include <ATen/ops/max.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "backends/onednn/library.h"
#include "backends/quant/quantize.h"
#include "backends/reference/graph_interpreter.h"
#include "ir/text/text.h"
#include "tests/unit/quant_graph_maker.h"

namespace frametap::quant {
namespace {

std::vector<at::Tensor> RunAll(const Graph& graph, std::vector<c10::IValue> inputs) {
  GraphInterpreter walk(graph, std::move(inputs));
  while (!walk.done()) walk.Step();
  std::vector<at::Tensor> out;
  for (const c10::IValue& v : walk.Outputs()) out.push_back(v.toTensor());
  return out;
}

int Count(const Graph& graph, const std::string& op) {
  int n = 0;
  for (const Node& node : graph.nodes) n += node.op_name() == op;
  return n;
}

struct Converted {
  QuantizedGraph graph;
  double reference_sqnr = 0;
  double lowered_sqnr = 0;   // against float
  double lowered_steps = 0;  // largest difference to the reference, in steps of 1/255 of the output's range
};

Converted Quantize(const GraphMaker& m, const std::vector<at::Tensor>& data, const QuantConfig& config = {}) {
  auto observation = std::make_shared<Observation>();
  auto observing = MakeObservingExecutable(m.graph, m.weights, observation);
  EXPECT_TRUE(observing.ok()) << observing.status();
  for (const at::Tensor& x : data) {
    const auto got = (*observing)->Run(m.Inputs({x}));
    EXPECT_TRUE(got[0].toTensor().equal(RunAll(m.graph, m.Inputs({x}))[0]));
  }
  auto quantized = Convert(m.graph, m.weights, *observation, config);
  EXPECT_TRUE(quantized.ok()) << quantized.status();
  Converted out;
  if (!quantized.ok()) return out;
  out.graph = *std::move(quantized);
  EXPECT_EQ(out.graph.lowering_note, "");
  for (const Graph* graph : {&out.graph.reference, &out.graph.lowered}) {
    EXPECT_TRUE(Verify(*graph).ok()) << Verify(*graph);
    const auto parsed = ParseGraph(Print(*graph));
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    if (parsed.ok()) {
      EXPECT_EQ(Print(*parsed), Print(*graph));
    }
  }
  const auto want = RunAll(m.graph, m.Inputs({data[0]}));
  const auto reference = RunAll(out.graph.reference, m.Inputs({data[0]}));
  const auto lowered = RunAll(out.graph.lowered, m.Inputs({data[0]}));
  EXPECT_EQ(want.size(), lowered.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(want[i].sizes(), lowered[i].sizes());
    EXPECT_TRUE(lowered[i].is_contiguous());
    const double range = want[i].max().sub(want[i].min()).item<double>();
    out.lowered_steps =
        std::max(out.lowered_steps, reference[i].sub(lowered[i]).abs().max().item<double>() / (range / 255));
  }
  out.reference_sqnr = Sqnr(want[0], reference[0]);
  out.lowered_sqnr = Sqnr(want[0], lowered[0]);
  for (const OpReport& row : out.graph.report) {
    EXPECT_FALSE(row.op.empty());
    EXPECT_FALSE(row.reason.empty()) << row.op;
  }
  return out;
}

class QuantConvertTest : public ::testing::Test {
 protected:
  void SetUp() override { at::manual_seed(7); }
};

TEST_F(QuantConvertTest, ConvBatchNormReluIsOneKernel) {
  GraphMaker m;
  const at::Tensor x = at::randn({2, 3, 16, 16});
  const ValueId v = m.ReluInPlace(m.BatchNorm(m.Conv(m.Input(x), 8, 3, 1, 1, 1, false)));
  m.graph.outputs = {m.Conv(v, 5, 3, 2, 1)};
  const Converted c = Quantize(m, {x, at::randn({2, 3, 16, 16})});
  EXPECT_GT(c.reference_sqnr, 32);
  EXPECT_LT(c.lowered_steps, 2.5);
  EXPECT_EQ(Count(c.graph.lowered, "frametap.qconv"), 2);
  EXPECT_EQ(Count(c.graph.lowered, "frametap.dequantize_per_tensor"), 0);
  EXPECT_EQ(Count(c.graph.reference, "aten.batch_norm"), 0);
  EXPECT_EQ(c.graph.report[0].decision, Decision::kInt8);
  EXPECT_EQ(c.graph.report[1].decision, Decision::kFolded);
  EXPECT_EQ(c.graph.report[2].decision, Decision::kInt8);
  EXPECT_EQ(c.graph.report[3].decision, Decision::kInt8);
  EXPECT_GT(*c.graph.report[0].sqnr, 30);
  EXPECT_GT(*c.graph.report[3].cumulative_sqnr, 30);
}

TEST_F(QuantConvertTest, ResidualBlockStaysInBytes) {
  GraphMaker m;
  const at::Tensor x = at::randn({1, 3, 32, 32});
  ValueId v = m.Relu(m.BatchNorm(m.Conv(m.Input(x), 16, 3, 1, 1)));
  v = m.MaxPool(v, 3, 2, 1);
  ValueId skip = v;
  v = m.Relu(m.BatchNorm(m.Conv(v, 16, 3, 1, 1)));
  v = m.BatchNorm(m.Conv(v, 16, 3, 1, 1));
  v = m.Op("aten::add_", "Tensor", {Arg::Of(v), Arg::Of(skip), Arg::Const(int64_t{1})});
  v = m.ReluInPlace(v);
  skip = m.BatchNorm(m.Conv(v, 32, 1, 2, 0));
  v = m.Relu(m.BatchNorm(m.Conv(v, 32, 3, 2, 1)));
  v = m.BatchNorm(m.Conv(v, 32, 3, 1, 1));
  v = m.Relu(m.Sum(v, skip));
  m.graph.outputs = {m.Linear(m.Flatten(m.GlobalPool(v)), 10)};
  const Converted c = Quantize(m, {x, at::randn({1, 3, 32, 32})});
  EXPECT_GT(c.reference_sqnr, 25);
  EXPECT_LT(c.lowered_steps, 4);
  EXPECT_EQ(Count(c.graph.lowered, "frametap.qconv_add"), 2);
  EXPECT_EQ(Count(c.graph.lowered, "frametap.max_pool2d"), 1);
  EXPECT_EQ(Count(c.graph.lowered, "frametap.dequantize_per_tensor"), 0);
  EXPECT_EQ(Count(c.graph.lowered, "aten.clone"), 0);
  for (const OpReport& row : c.graph.report) EXPECT_NE(row.decision, Decision::kFloat) << row.op << ": " << row.reason;
}

TEST_F(QuantConvertTest, B1_AnAccumulatorThatIsReadLaterIsCopied) {
  GraphMaker m;
  const at::Tensor x = at::randn({1, 4, 8, 8});
  const ValueId a = m.Relu(m.Conv(m.Input(x), 8, 3, 1, 1));
  const ValueId b = m.Relu(m.Sum(m.Conv(a, 8, 3, 1, 1), a));
  const ValueId c = m.Relu(m.Sum(m.Conv(b, 8, 3, 1, 1), a));  // `a` again
  m.graph.outputs = {m.Conv(c, 4, 1)};
  const Converted q = Quantize(m, {x});
  EXPECT_EQ(Count(q.graph.lowered, "aten.clone"), 1);
  EXPECT_LT(q.lowered_steps, 3);
}

TEST_F(QuantConvertTest, M1_InPlaceOpsThatCanBeSeenStayFloat) {
  GraphMaker m;
  const at::Tensor x = at::randn({1, 4, 8, 8});
  const ValueId a = m.Conv(m.Input(x), 8, 3, 1, 1);
  const ValueId view = m.Op("aten::view", "", {Arg::Of(a), GraphMaker::Ints({1, 8, 64})});
  const ValueId b = m.ReluInPlace(a);
  m.graph.outputs = {m.Conv(b, 4, 1), view};  // `view` sees the write
  const Converted q = Quantize(m, {x});
  EXPECT_LT(q.lowered_steps, 3);
  EXPECT_GT(q.reference_sqnr, 35);
  const auto& report = q.graph.report;
  EXPECT_EQ(report[0].decision, Decision::kInt8) << "it makes floats, which are written later";
  EXPECT_EQ(report[1].decision, Decision::kFloat);
  EXPECT_NE(report[1].reason.find("in place by aten.relu_ at forward:12:4"), std::string::npos) << report[1].reason;
  EXPECT_EQ(report[2].decision, Decision::kFloat);
  EXPECT_EQ(report[3].decision, Decision::kInt8) << "nothing writes to its input any more";
}

TEST_F(QuantConvertTest, ConcatSharesParametersAndMeansHaveTheirOwn) {
  GraphMaker m;
  const at::Tensor x = at::randn({2, 4, 12, 12});
  const ValueId in = m.Input(x);
  const ValueId a = m.Relu(m.Conv(in, 8, 3, 1, 1));
  const ValueId b = m.Conv(in, 8, 1);
  ValueId v = m.Op("aten::cat", "", {Arg::List({Arg::Of(a), Arg::Of(b)}), Arg::Const(int64_t{1})});
  v = m.Op("aten::avg_pool2d", "",
           {Arg::Of(v), GraphMaker::Ints({3, 3}), GraphMaker::Ints({2, 2}), GraphMaker::Ints({1, 1}), Arg::Const(false),
            Arg::Const(true), Arg::Const(c10::IValue())});
  m.graph.outputs = {m.Conv(v, 6, 3, 1, 1, 2)};
  const Converted q = Quantize(m, {x});
  EXPECT_GT(q.reference_sqnr, 30);
  EXPECT_LT(q.lowered_steps, 3);
  EXPECT_EQ(q.graph.report[3].decision, Decision::kFollows);
  EXPECT_EQ(q.graph.report[4].decision, Decision::kInt8);
  EXPECT_EQ(Count(q.graph.lowered, "frametap.dequantize_per_tensor"), 0);
}

TEST_F(QuantConvertTest, CurvesJoinTheirKernel) {
  const size_t clamps = onednn::HasExactProducts() ? 0 : 1;  // of activations to 7 bits
  for (const char* op : {"aten::hardswish", "aten::silu", "aten::relu6", "aten::hardtanh", "aten::sigmoid",
                         "aten::hardsigmoid", "aten::tanh", "aten::leaky_relu", "aten::gelu"}) {
    GraphMaker m;
    const at::Tensor x = at::randn({1, 8, 10, 10});
    std::vector<Arg> rest;
    const ValueId a = m.Conv(m.Input(x), 16, 3, 1, 1);
    std::vector<Arg> args{Arg::Of(a)};
    if (std::string(op) == "aten::hardtanh") args.insert(args.end(), {Arg::Const(-0.5), Arg::Const(1.5)});
    m.graph.outputs = {m.Conv(m.Op(op, "", args), 8, 1)};
    const Converted q = Quantize(m, {x});
    EXPECT_GT(q.reference_sqnr, 30) << op;
    EXPECT_LT(q.lowered_steps, 3) << op;
    EXPECT_EQ(q.graph.lowered.nodes.size(), 4 + clamps) << op;  // quantize, conv, conv, planes
  }
  for (const char* form : {"none", "tanh"}) {
    GraphMaker m;
    const at::Tensor x = at::randn({4, 5, 32});
    const ValueId a = m.Op("aten::gelu", "", {Arg::Of(m.Linear(m.Input(x), 64)), Arg::Const(form)});
    m.graph.outputs = {m.Linear(a, 16)};
    const Converted q = Quantize(m, {x});
    EXPECT_GT(q.reference_sqnr, 30) << form;
    EXPECT_LT(q.lowered_steps, 3) << form;
    EXPECT_EQ(q.graph.lowered.nodes.size(), 3 + clamps) << form;
  }
}

TEST_F(QuantConvertTest, FloatOpsBetweenAreExplained) {
  GraphMaker m;
  const at::Tensor x = at::randn({3, 16});
  const ValueId a = m.Linear(m.Input(x), 32);
  const ValueId s = m.Op("aten::softmax", "int", {Arg::Of(a), Arg::Const(int64_t{-1}), Arg::Const(c10::IValue())});
  const ValueId d = m.Op("aten::dropout", "", {Arg::Of(s), Arg::Const(0.5), Arg::Const(false)});
  const ValueId r = m.Op("aten::rsub", "Scalar", {Arg::Of(d), Arg::Const(1.0), Arg::Const(int64_t{1})});
  m.graph.outputs = {m.Linear(r, 4), s};
  const Converted q = Quantize(m, {x});
  EXPECT_EQ(q.graph.report[0].decision, Decision::kInt8);
  EXPECT_EQ(q.graph.report[1].decision, Decision::kFloat);
  EXPECT_EQ(q.graph.report[2].decision, Decision::kFolded);
  EXPECT_EQ(q.graph.report[3].decision, Decision::kFloat);
  EXPECT_NE(q.graph.report[3].reason.find("comes from a float op or from outside"), std::string::npos);
  EXPECT_EQ(q.graph.report[4].decision, Decision::kInt8);
}

TEST_F(QuantConvertTest, L3_ViewsOfImagesStayLegal) {
  GraphMaker m;
  const at::Tensor x = at::randn({2, 3, 8, 8});
  const ValueId a = m.Relu(m.Conv(m.Input(x), 8, 3, 1, 1));
  const ValueId rows = m.Op("aten::view", "", {Arg::Of(a), GraphMaker::Ints({2, 8, 64})});
  const ValueId turned =
      m.Op("aten::transpose", "int", {Arg::Of(rows), Arg::Const(int64_t{1}), Arg::Const(int64_t{2})});
  const ValueId b = m.Linear(turned, 16);
  const ValueId c = m.Conv(a, 4, 3);  // f32 result, then a view
  m.graph.outputs = {b, m.Op("aten::view", "", {Arg::Of(c), GraphMaker::Ints({2, -1})}), a};
  const Converted q = Quantize(m, {x});
  EXPECT_GT(q.reference_sqnr, 30);
  EXPECT_LT(q.lowered_steps, 3);
  EXPECT_EQ(q.graph.report[2].decision, Decision::kFollows);
  EXPECT_EQ(q.graph.report[3].decision, Decision::kFollows);
  EXPECT_EQ(q.graph.report[6].decision, Decision::kFloat);
}

TEST_F(QuantConvertTest, MeanOverTheImageIsAPool) {
  for (const bool keep : {false, true}) {
    GraphMaker m;
    const at::Tensor x = at::randn({2, 3, 9, 7});
    const ValueId a = m.Relu(m.Conv(m.Input(x), 8, 3));
    const ValueId mean = m.Op("aten::mean", "dim", {Arg::Of(a), GraphMaker::Ints({-1, -2}), Arg::Const(keep)});
    m.graph.outputs = {m.Linear(keep ? m.Flatten(mean) : mean, 5)};
    const Converted q = Quantize(m, {x});
    EXPECT_LT(q.lowered_steps, 3);
    EXPECT_EQ(q.graph.report[2].decision, Decision::kInt8);
  }
}

TEST_F(QuantConvertTest, M3_LinearAndBatchNorm) {
  GraphMaker m;
  const at::Tensor x = at::randn({32, 16});
  const ValueId a = m.Linear(m.Input(x), 24);
  const ValueId b = m.Relu(m.BatchNorm(a));
  const ValueId c = m.Linear(b, 24);
  m.graph.outputs = {m.BatchNorm(c), c};  // `c` has another reader: its norm stays
  const Converted q = Quantize(m, {x});
  EXPECT_GT(q.reference_sqnr, 28);
  EXPECT_LT(q.lowered_steps, 3);
  EXPECT_EQ(q.graph.report[1].decision, Decision::kFolded);
  EXPECT_EQ(q.graph.report[4].decision, Decision::kFloat);
  EXPECT_NE(q.graph.report[4].reason.find("is read by others too"), std::string::npos) << q.graph.report[4].reason;
}

TEST_F(QuantConvertTest, TheSameWeightTwiceAndSumsOfOneSize) {
  GraphMaker m;
  const at::Tensor x = at::randn({4, 16});
  const ValueId in = m.Input(x);
  const ValueId w = m.Weight(at::randn({16, 16}).mul(0.3));
  const auto linear = [&](ValueId v) { return m.Op("aten::linear", "", {Arg::Of(v), Arg::Of(w)}); };
  const ValueId a = m.Relu(linear(in));
  const ValueId b = linear(a);
  const ValueId sum = m.Relu(m.Sum(b, a));
  const ValueId doubled = m.Sum(sum, sum);  // the same tensor twice
  m.graph.outputs = {linear(sum), doubled};
  const Converted q = Quantize(m, {x});
  EXPECT_GT(q.reference_sqnr, 28);
  EXPECT_LT(q.lowered_steps, 3);
  EXPECT_EQ(q.graph.report[3].decision, Decision::kInt8);
  EXPECT_EQ(Count(q.graph.lowered, "frametap.qadd"), 1);
  EXPECT_EQ(q.graph.report[5].decision, Decision::kFloat);
}

TEST_F(QuantConvertTest, Q3_LoweringNeedsTheReferenceOnly) {
  GraphMaker m;
  const at::Tensor x = at::randn({1, 3, 8, 8});
  m.graph.outputs = {m.Conv(m.Relu(m.BatchNorm(m.Conv(m.Input(x), 8, 3))), 4, 1)};
  const Converted q = Quantize(m, {x});
  const auto again = Lower(q.graph.reference);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(RunAll(*again, m.Inputs({x}))[0].equal(RunAll(q.graph.lowered, m.Inputs({x}))[0]));
}

TEST_F(QuantConvertTest, Q1_LaterChangesOfAWeightDoNotMatter) {
  GraphMaker m;
  const at::Tensor x = at::randn({4, 16});
  m.graph.outputs = {m.Linear(m.Input(x), 8)};
  const Converted q = Quantize(m, {x});
  const auto before = RunAll(q.graph.lowered, m.Inputs({x}));
  for (const at::Tensor& w : m.weights) {
    if (w.defined()) w.zero_();
  }
  EXPECT_TRUE(RunAll(q.graph.lowered, m.Inputs({x}))[0].equal(before[0]));
}

TEST_F(QuantConvertTest, OtherBatchSizesRun) {
  GraphMaker m;
  const at::Tensor x = at::randn({2, 3, 16, 16});
  const ValueId v = m.Relu(m.Conv(m.Input(x), 8, 3, 1, 1));
  m.graph.outputs = {m.Linear(m.Flatten(m.GlobalPool(v)), 10)};
  const Converted q = Quantize(m, {x});
  for (const int64_t n : {1, 7, 32}) {
    const at::Tensor y = at::randn({n, 3, 16, 16});
    const auto want = RunAll(q.graph.reference, m.Inputs({y}));
    const auto got = RunAll(q.graph.lowered, m.Inputs({y}));
    EXPECT_GT(Sqnr(want[0], got[0]), 35) << n;
  }
}

TEST_F(QuantConvertTest, SevenBitsForOldCpus) {
  GraphMaker m;
  const at::Tensor x = at::randn({1, 8, 10, 10});
  m.graph.outputs = {m.Conv(m.Relu(m.Conv(m.Input(x), 16, 3, 1, 1)), 8, 1)};
  QuantConfig config;
  config.activation_bits = 7;
  const Converted q = Quantize(m, {x}, config);
  EXPECT_GT(q.reference_sqnr, 24);
  EXPECT_LT(q.lowered_steps, 4);
  EXPECT_EQ(Count(q.graph.lowered, "aten.clamp_max"), 1);
}

TEST_F(QuantConvertTest, ExclusionsAreHonouredAndSaid) {
  GraphMaker m;
  const at::Tensor x = at::randn({2, 16});
  m.graph.outputs = {m.Linear(m.Relu(m.Linear(m.Input(x), 32)), 8)};
  QuantConfig config;
  config.float_ops = {"aten.linear"};
  auto observation = std::make_shared<Observation>();
  auto observing = MakeObservingExecutable(m.graph, m.weights, observation);
  (*observing)->Run(m.Inputs({x}));
  const auto q = Convert(m.graph, m.weights, *observation, config);
  ASSERT_TRUE(q.ok()) << q.status();
  EXPECT_EQ(q->report[0].decision, Decision::kFloat);
  EXPECT_EQ(q->report[0].reason, "left in float by request (float_ops)");
  EXPECT_TRUE(RunAll(q->lowered, m.Inputs({x}))[0].equal(RunAll(m.graph, m.Inputs({x}))[0]));
}

TEST_F(QuantConvertTest, BadCalibrationIsAStatus) {
  GraphMaker m;
  const at::Tensor x = at::randn({2, 16});
  m.graph.outputs = {m.Linear(m.Input(x), 8)};
  auto observation = std::make_shared<Observation>();
  EXPECT_EQ(Convert(m.graph, m.weights, *observation).status().code(), absl::StatusCode::kFailedPrecondition);
  auto observing = MakeObservingExecutable(m.graph, m.weights, observation);
  const at::Tensor bad = x.clone();
  bad.data_ptr<float>()[3] = std::numeric_limits<float>::quiet_NaN();
  (*observing)->Run(m.Inputs({bad}));
  const auto status = Convert(m.graph, m.weights, *observation).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("NaN or infinity in the input %x0"), std::string::npos) << status;
}

}  // namespace
}  // namespace frametap::quant
