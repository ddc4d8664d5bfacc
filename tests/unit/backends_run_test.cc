// Every case runs under both backends here and is compared with the ops called by hand, or with one another.
// Laws: backend/B3, eager_state/E2, boxing/N1, boxing/N4, plan/P1, plan/P3, plan/P4
#include <gtest/gtest.h>

#include <ATen/autocast_mode.h>
#include <ATen/core/stack.h>
#include <c10/core/Allocator.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <thread>

#include "backends/backend.h"
#include "ir/graph/builtin_op.h"
#include "ir/graph/eager_state.h"
#include "ir/text/text.h"

namespace frametap {
namespace {

using Values = std::vector<c10::IValue>;

std::unique_ptr<Executable> Compile(const std::string& backend, const Graph& graph) {
  const std::unique_ptr<Backend> made = backend == "native" ? MakeNativeBackend() : MakeReferenceBackend();
  EXPECT_EQ(made->name(), backend);
  absl::StatusOr<std::unique_ptr<Executable>> executable = made->Compile(graph);
  EXPECT_TRUE(executable.ok()) << executable.status();
  return std::move(*executable);
}

Graph Parsed(const std::string& text) {
  absl::StatusOr<Graph> graph = ParseGraph(text);
  EXPECT_TRUE(graph.ok()) << graph.status();
  return std::move(*graph);
}

void ExpectSame(const c10::IValue& a, const c10::IValue& b) {
  ASSERT_EQ(a.tagKind(), b.tagKind());
  if (!a.isTensor()) {
    EXPECT_EQ(a, b);
    return;
  }
  const at::Tensor x = a.toTensor();
  const at::Tensor y = b.toTensor();
  EXPECT_EQ(x.scalar_type(), y.scalar_type());
  EXPECT_EQ(x.strides(), y.strides());
  EXPECT_EQ(x.requires_grad(), y.requires_grad());
  EXPECT_EQ(x.is_inference(), y.is_inference());
  EXPECT_EQ(x.is_view(), y.is_view());
  EXPECT_TRUE(at::equal(x, y)) << x << y;
}

class RunTest : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Executable> Make(const std::string& text) { return Compile(GetParam(), Parsed(text)); }
  Values Run(const std::string& text, const Values& inputs) { return Make(text)->Run(inputs); }
};

INSTANTIATE_TEST_SUITE_P(Backends, RunTest, ::testing::Values("reference", "native"));

TEST_P(RunTest, PlainOps) {
  const at::Tensor x = at::randn({4, 8}), w = at::randn({3, 8}), b = at::randn({3});
  const Values out =
      Run("graph (%x, %w, %b) {\n %h = aten.linear(%x, %w, %b)\n %r = aten.relu(%h)\n %d = aten.mul.Tensor(%r, %r)\n"
          " return %d, %h, %d\n}\n",
          {x, w, b});
  ASSERT_EQ(out.size(), 3u);
  const at::Tensor h = at::linear(x, w, b);
  ExpectSame(out[0], at::relu(h) * at::relu(h));
  ExpectSame(out[1], h);
  EXPECT_TRUE(out[0].toTensor().is_same(out[2].toTensor()));
}

TEST_P(RunTest, InPlaceOpsWriteToTheInputAndItsViews) {
  const at::Tensor x = at::zeros({2, 3});
  const Values out =
      Run("graph (%x) {\n %v = aten.select.int(%x, 0, 1)\n %w = aten.add_.Scalar(%v, 5)\n %y = aten.mul.Tensor(%x, 2)\n"
          " return %y, %v, %w\n}\n",
          {x});
  EXPECT_EQ(x[1][0].item<float>(), 5);
  ExpectSame(out[0], x * 2);
  EXPECT_TRUE(out[1].toTensor().is_same(out[2].toTensor()));
  EXPECT_EQ(out[1].toTensor().data_ptr(), x[1].data_ptr());
}

TEST_P(RunTest, ListsOptionalListsAndListItems) {
  const at::Tensor x = at::arange(12).view({3, 4}), i = at::tensor({2, 0});
  const Values out =
      Run("graph (%x, %i) {\n %l : tensors = aten.split.Tensor(%x, 1)\n %a = list.item(%l, 0)\n %b = list.item(%l, 2)\n"
          " %c = aten.cat([%a, %b, %a])\n %d = aten.index.Tensor(%c, [None, %i])\n return %d, %l\n}\n",
          {x, i});
  ExpectSame(out[0],
             at::cat({x[0].unsqueeze(0), x[2].unsqueeze(0), x[0].unsqueeze(0)}).index({at::indexing::Slice(), i}));
  EXPECT_EQ(out[1].toTensorVector().size(), 3u);
}

TEST_P(RunTest, NumbersAsValues) {
  const at::Tensor x = at::arange(6, at::kFloat);
  const auto executable = Make(
      "graph (%x, %n : int, %k : float) {\n %0 : int = int.add(%n, 1)\n %1 = aten.view(%x, [%0, -1])\n"
      " %2 = aten.mul.Tensor(%1, %k)\n %3 = aten.add.Tensor(%2, 1)\n %4 : float = float.div(%k, %n)\n"
      " %5 = aten.sub.Tensor(%3, %x, alpha=%n)\n %6 = aten.elu(%1, %n, %k)\n return %3, %0, %4, %6\n}\n");
  EXPECT_THROW(executable->Run({x, int64_t{1}, 2.5}), c10::Error);  // %5: shapes
  const at::Tensor y = at::arange(3, at::kFloat).view({3, 1});
  const Values out = executable->Run({y, int64_t{2}, 2.5});
  ExpectSame(out[0], y * 2.5 + 1);
  EXPECT_EQ(out[1].toInt(), 3);
  EXPECT_EQ(out[2].toDouble(), 1.25);
  ExpectSame(out[3], at::elu(y, 2, 2.5));
}

TEST_P(RunTest, N1_NumbersForTensorsDoNotPromote) {
  const Values out =
      Run("graph (%x, %i, %k : float, %n : int) {\n %0 = aten.mul.Tensor(%x, 2.5)\n %1 = aten.mul.Tensor(%x, %k)\n"
          " %2 = aten.add.Tensor(%i, %n)\n %3 = aten.div.Tensor(1, %i)\n return %0, %1, %2, %3\n}\n",
          {at::ones({2}, at::kHalf), at::ones({2}, at::kInt), 2.5, int64_t{3}});
  EXPECT_EQ(out[0].toTensor().scalar_type(), at::kHalf);
  EXPECT_EQ(out[1].toTensor().scalar_type(), at::kHalf);
  EXPECT_EQ(out[2].toTensor().scalar_type(), at::kInt);
  EXPECT_EQ(out[3].toTensor().scalar_type(), at::kFloat);
}

TEST_P(RunTest, SeveralResultsAndNone) {
  const at::Tensor x = at::randn({5});
  const Values out =
      Run("graph (%x) {\n %v, %i = aten.topk(%x, 2)\n %t = aten.gt.Scalar(%x, -100)\n %a = aten.all(%t)\n"
          " aten._assert_async(%a)\n %w, %j = aten.sort(%x)\n return %i, %w\n}\n",
          {x});
  ExpectSame(out[0], std::get<1>(at::topk(x, 2)));
  ExpectSame(out[1], std::get<0>(at::sort(x)));
}

TEST_P(RunTest, RandomOpsFollowTheGenerator) {
  const auto executable = Make(
      "graph (%x) {\n %0 = aten.dropout(%x, 0.5, True)\n %1 = aten.rand_like(%x)\n"
      " %2 = aten.normal_(%1, generator=generator(default))\n %3 = aten.add.Tensor(%0, %2)\n return %3\n}\n");
  const at::Tensor x = at::ones({64});
  at::manual_seed(3);
  const at::Tensor d = at::dropout(x, 0.5, true);
  const at::Tensor want = d + at::rand_like(x).normal_();
  at::manual_seed(3);
  ExpectSame(executable->Run({x})[0], want);
}

TEST_P(RunTest, AutogradGoesThrough) {
  const auto executable = Make(
      "graph (%x, %w) {\n %0 = aten.linear(%x, %w)\n %1 = aten.tanh(%0)\n %2 = aten.mul.Tensor(%1, 3)\n"
      " %3 = aten.sum(%2)\n return %3\n}\n");
  const at::Tensor x = at::randn({2, 3}), w = at::randn({4, 3}).requires_grad_();
  const at::Tensor loss = executable->Run({x, w})[0].toTensor();
  loss.backward();
  const at::Tensor got = w.grad().clone();
  w.mutable_grad() = at::Tensor();
  (at::tanh(at::linear(x, w)) * 3).sum().backward();
  ExpectSame(got, w.grad());
}

TEST_P(RunTest, StatesAreReestablishedAndRestored) {
  const auto executable = Make(
      "graph (%x) {\n %0 = aten.mul.Tensor(%x, 2)  {grad_mode(off)}\n %1 = aten.mul.Tensor(%x, 3)\n"
      " %2 = aten.mul.Tensor(%x, 4)  {inference_mode(on), grad_mode(off)}\n"
      " %3 = aten.mm(%x, %x)  {autocast(bf16)}\n %4 = aten.mm(%x, %x)  {autocast(f16), grad_mode(off)}\n"
      " %5 = aten.mm(%x, %x)  {inference_mode(on), grad_mode(off), autocast(bf16)}\n %6 = aten.mm(%x, %x)\n"
      " return %0, %1, %2, %3, %4, %5, %6\n}\n");
  const at::Tensor x = at::randn({3, 3}).requires_grad_();
  for (const bool outer_grad : {true, false}) {
    for (const bool outer_inference : {false, true}) {
      const c10::InferenceMode inference(outer_inference);
      const c10::AutoGradMode grad(outer_grad && !outer_inference);
      const EagerState before = CurrentEagerState();
      const Values out = executable->Run({x});
      EXPECT_EQ(CurrentEagerState(), before);
      const auto t = [&](size_t i) { return out[i].toTensor(); };
      EXPECT_FALSE(t(0).requires_grad());
      EXPECT_TRUE(t(1).requires_grad());
      EXPECT_TRUE(t(2).is_inference());
      EXPECT_FALSE(t(1).is_inference());
      EXPECT_EQ(t(3).scalar_type(), at::kBFloat16);
      EXPECT_TRUE(t(3).requires_grad());
      EXPECT_EQ(t(4).scalar_type(), at::kHalf);
      EXPECT_FALSE(t(4).requires_grad());
      EXPECT_EQ(t(5).scalar_type(), at::kBFloat16);
      EXPECT_TRUE(t(5).is_inference());
      EXPECT_EQ(t(6).scalar_type(), at::kFloat);
      EXPECT_TRUE(t(6).requires_grad());
    }
  }
}

TEST_P(RunTest, E2_NoCastWeightOutlivesTheRun) {
  const auto executable = Make("graph (%x, %w) {\n %0 = aten.linear(%x, %w)  {autocast(bf16)}\n return %0\n}\n");
  const at::Tensor x = at::ones({1, 2}), w = at::ones({1, 2}).requires_grad_();
  EXPECT_EQ(executable->Run({x, w})[0].toTensor().item<float>(), 2);
  w.data().fill_(3);
  EXPECT_EQ(executable->Run({x, w})[0].toTensor().item<float>(), 6);
}

TEST_P(RunTest, AnExceptionLeavesTheStateAndPassesUnchanged) {
  const auto executable = Make(
      "graph (%x, %y) {\n %0 = aten.mm(%x, %y)  {grad_mode(off), autocast(bf16), inference_mode(on)}\n return %0\n}\n");
  const EagerState before = CurrentEagerState();
  EXPECT_THROW(executable->Run({at::ones({2, 3}), at::ones({2, 3})}), c10::Error);
  EXPECT_EQ(CurrentEagerState(), before);
  EXPECT_FALSE(c10::InferenceMode::is_enabled());
  EXPECT_EQ(executable->Run({at::ones({2, 3}), at::ones({3, 3})}).size(), 1u);
}

TEST_P(RunTest, B3_SaysWhetherSomethingWasChangedBeforeAnOpRaised) {
  const at::Tensor w = at::ones({2, 3}), far = at::full({1}, 7, at::kLong);
  const auto raises = [&](const char* nodes) {
    bool changed = false;
    const auto executable = Make(std::string("graph (%w, %ids) {\n") + nodes + " return %0\n}\n");
    EXPECT_THROW(executable->Run({w, far}, &changed), c10::Error) << nodes;
    return changed;
  };
  EXPECT_FALSE(raises(" %0 = aten.embedding(%w, %ids)\n %1 = aten.dropout(%0, 0.5, True)\n"));
  EXPECT_FALSE(raises(" %0 = aten.embedding(%w, %ids)\n %1 = aten.add_.Scalar(%w, 1)\n"));
  EXPECT_TRUE(raises(" %1 = aten.dropout(%w, 0.5, True)\n %0 = aten.embedding(%w, %ids)\n"));
  EXPECT_TRUE(raises(" %1 = aten.add_.Scalar(%w, 1)\n %0 = aten.embedding(%w, %ids)\n"));
}

// Counts what this thread allocates for tensors.
struct Allocations : c10::MemoryReportingInfoBase {
  int count = 0;
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override { count += size > 0; }
  bool memoryProfilingEnabled() const override { return true; }
};

int AllocationsOf(Executable& executable, const Values& inputs) {
  const auto counter = std::make_shared<Allocations>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, counter);
  executable.Run(inputs);
  return counter->count;
}

TEST(NativePlan, P4_ANumberIsConvertedOnce) {
  const auto allocations = [](const char* state, const at::Tensor& x) {
    const auto text = std::string("graph (%x) {\n %0 = aten.mul.Tensor(%x, 0.1)  ") + state + "\n return %0\n}\n";
    return AllocationsOf(*Compile("native", Parsed(text)), {x});
  };
  const at::Tensor x = at::ones({4});
  EXPECT_EQ(allocations("{grad_mode(off)}", x), 1);
  EXPECT_EQ(allocations("", x), 2);  // it would be saved for backward as it is
  EXPECT_EQ(allocations("{grad_mode(off), autocast(bf16)}", x), 2);
  EXPECT_EQ(allocations("{grad_mode(off)}", x.to(at::kDouble)), 1);
}

TEST_P(RunTest, N4_AConstantIsNewInEachRun) {
  for (const char* nodes :
       {" %0 = aten.lift_fresh(%c)\n %1 = aten.add_.Scalar(%0, 1)\n return %1\n",
        " %1 = aten.add_.Scalar(%c, 1)\n return %1\n", " return %c\n",
        " %1 = aten.dropout(%c, 0.5, False)\n return %1\n", " %1 = aten.view(%c, [2])\n return %1\n"}) {
    Graph graph = Parsed(std::string("graph () {\n constant %c : f32[2]\n") + nodes + "}\n");
    graph.constants[0].second = at::ones({2});
    const auto executable = Compile(GetParam(), graph);
    const at::Tensor a = executable->Run({})[0].toTensor();
    const at::Tensor want = a.clone();
    a.fill_(100);
    EXPECT_TRUE(at::equal(executable->Run({})[0].toTensor(), want)) << nodes;
  }
}

TEST_P(RunTest, N4_AConstantKnowsTheStateOfItsPlace) {
  Graph graph = Parsed(
      "graph () {\n constant %c : f32[2]\n %0 = aten.lift_fresh(%c)  {inference_mode(on), grad_mode(off)}\n return "
      "%0\n}\n");
  graph.constants[0].second = at::ones({2});
  EXPECT_TRUE(Compile(GetParam(), graph)->Run({})[0].toTensor().is_inference());
}

TEST_P(RunTest, AParsedConstantHasNoData) {
  const auto executable = Make("graph () {\n constant %c : f32[2]\n %0 = aten.relu(%c)\n return %0\n}\n");
  EXPECT_THROW(executable->Run({}), c10::Error);
}

TEST_P(RunTest, ScalarsThatInt64CannotHoldAreNotWrong) {
  const auto add = Make("graph (%a : int, %b : int) {\n %0 : int = int.add(%a, %b)\n return %0\n}\n");
  EXPECT_THROW(add->Run({std::numeric_limits<int64_t>::max(), int64_t{1}}), NoResult);
  EXPECT_EQ(add->Run({int64_t{2}, true})[0].toInt(), 3);
  const auto div = Make("graph (%a, %b) {\n %0 : float = float.div(%a, %b)\n return %0\n}\n");
  EXPECT_THROW(div->Run({1.0, 0.0}), NoResult);
  EXPECT_EQ(div->Run({int64_t{1}, int64_t{3}})[0].toDouble(), 1.0 / 3);
}

TEST_P(RunTest, WrongNumberOfInputs) {
  EXPECT_THROW(Run("graph (%x) {\n}\n", {}), c10::Error);
  EXPECT_TRUE(Run("graph (%x) {\n}\n", {at::ones({1})}).empty());
}

TEST_P(RunTest, ABadGraphIsRefused) {
  Graph graph = Parsed("graph (%x) {\n %0 = aten.relu(%x)\n return %0\n}\n");
  graph.nodes[0].args.clear();
  const auto backend = std::string(GetParam()) == "native" ? MakeNativeBackend() : MakeReferenceBackend();
  EXPECT_FALSE(backend->Compile(graph).ok());
}

TEST_P(RunTest, P3_ThreadsRunOneExecutable) {
  const auto executable = Make(
      "graph (%x, %w) {\n %0 = aten.linear(%x, %w)  {grad_mode(off)}\n %1 = aten.relu_(%0)\n"
      " %2 = aten.mul.Tensor(%1, 2.0)\n %3 : tensors = aten.split.Tensor(%2, 1)\n %4 = list.item(%3, 1)\n return "
      "%4\n}\n");
  const at::Tensor w = at::randn({5, 4});
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const at::Tensor x = at::full({2, 4}, t, at::kFloat);
      const at::Tensor want = (at::relu(at::linear(x, w)) * 2).slice(0, 1, 2);
      for (int i = 0; i < 300; ++i) wrong[t] += !at::equal(executable->Run({x, w})[0].toTensor(), want);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
}

// A custom op reports from inside of a run which values are still alive.
thread_local std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> watched;
thread_local bool alive_at_probe = false;

void Watch(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  watched.emplace(stack->back().toTensor().storage().getWeakStorageImpl());
}
void Probe(const c10::OperatorHandle&, torch::jit::Stack* stack) { alive_at_probe = !watched->expired(); }

class EarlyFreeTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto& dispatcher = c10::Dispatcher::singleton();
    const auto def = [&](const char* name, c10::KernelFunction kernel) {
      const c10::TypePtr tensor = c10::TensorType::get();
      c10::FunctionSchema schema(name, "", {c10::Argument("x", tensor)}, {c10::Argument("", tensor)});
      schema.setAliasAnalysis(c10::AliasAnalysisKind::FROM_SCHEMA);
      static std::vector<c10::RegistrationHandleRAII> kept;
      kept.push_back(dispatcher.registerDef(std::move(schema), "test"));
      kept.push_back(
          dispatcher.registerImpl({name, ""}, c10::DispatchKey::CPU, std::move(kernel), std::nullopt, nullptr, "test"));
    };
    def("frametap_test::watch", c10::KernelFunction::makeFromBoxedFunction<&Watch>());
    def("frametap_test::probe", c10::KernelFunction::makeFromBoxedFunction<&Probe>());
  }
  static bool Alive(const std::string& nodes) {
    const c10::AutoGradMode no_grad(false);
    const auto executable = Compile("native", Parsed("graph (%x, %z) {\n" + nodes + "}\n"));
    executable->Run({at::ones({4}), at::ones({4})});
    return alive_at_probe;
  }
};

TEST_F(EarlyFreeTest, P1_GoneAfterTheLastUse) {
  const std::string start =
      " %a = aten.add.Tensor(%x, 1)\n %b = frametap_test.watch(%a)\n %c = aten.mul.Tensor(%b, 2)\n";
  EXPECT_FALSE(Alive(start + " %d = frametap_test.probe(%z)\n return %c\n"));
  EXPECT_TRUE(Alive(start + " %d = frametap_test.probe(%z)\n %e = aten.relu(%b)\n return %e\n"));
  EXPECT_TRUE(Alive(start + " %d = frametap_test.probe(%z)\n return %a\n"));
}

TEST_F(EarlyFreeTest, P1_AnInputIsTheCallers) {
  EXPECT_TRUE(Alive(" %b = frametap_test.watch(%x)\n %c = aten.relu(%b)\n %d = frametap_test.probe(%z)\n return %d\n"));
}

TEST_F(EarlyFreeTest, P1_AListIsGoneAfterItsItemsAreTaken) {
  const std::string start =
      " %l : tensors = aten._foreach_add.Scalar([%x, %z], 1)\n %a = list.item(%l, 0)\n %u = frametap_test.watch(%a)\n";
  EXPECT_FALSE(Alive(start + " %d = frametap_test.probe(%z)\n return %d\n"));
  EXPECT_TRUE(Alive(start + " %d = frametap_test.probe(%z)\n %b = list.item(%l, 1)\n return %d, %b\n"));
}

}  // namespace
}  // namespace frametap
