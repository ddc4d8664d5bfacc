// Laws: repeats/S1, repeats/S2, repeats/S3
#include "ir/passes/repeats.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "ir/text/text.h"

namespace frametap {
namespace {

Graph Parsed(const std::string& text) {
  absl::StatusOr<Graph> graph = ParseGraph(text);
  EXPECT_TRUE(graph.ok()) << graph.status();
  return std::move(*graph);
}

// "%b for %a": what is used in whose place, in the order of the graph.
std::string Shared(const Graph& graph) {
  const Repeats repeats = FindRepeats(graph);
  std::string text;
  bool numbers = false, tensors = false;
  for (size_t i = 0; i < repeats.stands_for.size(); ++i) {
    const ValueId id(i), instead = repeats.stands_for[i];
    if (instead == id) continue;
    text += (text.empty() ? "" : ", ") + graph.value(instead).name + " for " + graph.value(id).name;
    (graph.node(graph.value(id).def).is_scalar() ? numbers : tensors) = true;
  }
  EXPECT_EQ(repeats.numbers, numbers);
  EXPECT_EQ(repeats.tensors, tensors);
  EXPECT_EQ(repeats.stands_for.empty(), text.empty());
  return text;
}

// Without gradients, unless another state is given.
std::string Shared(const std::string& nodes, const std::string& state = "grad_mode(off)") {
  return Shared(Parsed("graph (%x, %y, %n : int, %k : float) under {" + state + "} {\n" + nodes + "}\n"));
}

TEST(FindRepeats, S1_TheSameOpOnTheSameOperands) {
  const std::string end = " %z = aten.sub.Tensor(%a, %b)\n return %z\n";
  EXPECT_EQ(Shared(" %a = aten.exp(%x)\n %b = aten.exp(%x)\n" + end), "a for b");
  EXPECT_EQ(Shared(" %a = aten.add.Tensor(%x, %y)\n %b = aten.add.Tensor(%x, %y)\n" + end), "a for b");
  EXPECT_EQ(Shared(" %a = aten.sum.dim_IntList(%x, [0, 1])\n %b = aten.sum.dim_IntList(%x, [0, 1])\n" + end),
            "a for b");
  EXPECT_EQ(Shared(" %a = aten.cat([%x, %y])\n %b = aten.cat([%x, %y])\n" + end), "a for b");
  EXPECT_EQ(Shared(" %a = aten.mul.Tensor(%x, %k)\n %b = aten.mul.Tensor(%x, %k)\n" + end), "a for b");

  EXPECT_EQ(Shared(" %a = aten.exp(%x)\n %b = aten.exp2(%x)\n" + end), "");
  EXPECT_EQ(Shared(" %a = aten.exp(%x)\n %b = aten.exp(%y)\n" + end), "");
  EXPECT_EQ(Shared(" %a = aten.sub.Tensor(%x, %y)\n %b = aten.sub.Tensor(%y, %x)\n" + end), "");
  EXPECT_EQ(Shared(" %a = aten.sub.Tensor(%x, %y)\n %b = aten.sub.Tensor(%x, %y, alpha=2)\n" + end), "");
  EXPECT_EQ(Shared(" %a = aten.sum.dim_IntList(%x, [0, 1])\n %b = aten.sum.dim_IntList(%x, [0])\n" + end), "");
  EXPECT_EQ(Shared(" %a = aten.cat([%x, %y])\n %b = aten.cat([%x, %x])\n" + end), "");
  EXPECT_EQ(Shared(" %a = aten.cat([%x, %y])\n %b = aten.cat([%x, %y, %y])\n" + end), "");
  EXPECT_EQ(Shared(" %a = aten.mul.Tensor(%x, %k)\n %b = aten.mul.Tensor(%x, %n)\n" + end), "");
}

TEST(FindRepeats, S1_ConstantsAreTheSameByTypeAndBits) {
  const auto with = [](const std::string& a, const std::string& b) {
    return Shared(" %a = aten.mul.Tensor(%x, " + a + ")\n %b = aten.mul.Tensor(%x, " + b +
                  ")\n %z = aten.sub.Tensor(%a, %b)\n return %z\n");
  };
  for (const char* same : {"1", "1.0", "True", "-0.0", "nan", "inf"}) EXPECT_EQ(with(same, same), "a for b") << same;
  EXPECT_EQ(with("1", "1.0"), "");
  EXPECT_EQ(with("1", "True"), "");
  EXPECT_EQ(with("1.0", "True"), "");
  EXPECT_EQ(with("0.0", "-0.0"), "");
  EXPECT_EQ(with("0", "False"), "");
  EXPECT_EQ(with("inf", "-inf"), "");
}

TEST(FindRepeats, S1_ByTheirOperands) {
  EXPECT_EQ(Shared(" %a = aten.mul.Tensor(%x, 2)\n %s = aten.sin(%a)\n %b = aten.mul.Tensor(%x, 2)\n"
                   " %t = aten.sin(%b)\n %z = aten.mul.Tensor(%s, %t)\n return %z\n"),
            "a for b, s for t");
  // Equal nodes count although they are not shared, as two outputs.
  EXPECT_EQ(Shared(" %a = aten.exp(%x)\n %b = aten.exp(%x)\n %s = aten.sin(%a)\n %t = aten.sin(%b)\n"
                   " %z = aten.mul.Tensor(%s, %t)\n return %a, %b, %z\n"),
            "s for t");
}

TEST(FindRepeats, S1_BothBelowAutograd) {
  const std::string end = " %z = aten.sub.Tensor(%a, %b)\n return %z\n";
  const std::string nodes = " %a = aten.exp(%x)\n %b = aten.exp(%x)\n" + end;
  EXPECT_EQ(Shared(nodes, "grad_mode(on)"), "");
  EXPECT_EQ(Shared(nodes, "grad_mode(off), inference_mode(on)"), "");
  EXPECT_EQ(Shared(nodes, "grad_mode(off), autocast(bf16)"), "");
  EXPECT_EQ(Shared(" %a = aten.exp(%x)\n %b = aten.exp(%x)  {grad_mode(on)}\n" + end), "");
  EXPECT_EQ(Shared(" %p = aten.cos(%y)\n %q = aten.cos(%y)\n %r = aten.sub.Tensor(%p, %q)\n"
                   " %a = aten.exp(%x)  {grad_mode(on)}\n %b = aten.exp(%x)  {grad_mode(on)}\n" +
                   end),
            "p for q");
}

TEST(FindRepeats, S1_PlainFunctionsOnly) {
  const auto of = [](const std::string& op) {
    const std::string known = " %p = aten.cos(%y)\n %q = aten.cos(%y)\n %r = aten.sub.Tensor(%p, %q)\n";
    return Shared(known + " %a = " + op + "\n %b = " + op + "\n %z = aten.sub.Tensor(%a, %b)\n return %z\n");
  };
  EXPECT_EQ(of("aten.dropout(%x, 0.5, True)"), "p for q");
  EXPECT_EQ(of("aten.rand_like(%x)"), "p for q");
  EXPECT_EQ(of("aten.bernoulli(%x)"), "p for q");
  EXPECT_EQ(of("aten.empty_like(%x)"), "p for q");
  EXPECT_EQ(of("aten.new_empty(%x, [2])"), "p for q");
  EXPECT_EQ(of("aten.zeros([2])"), "p for q");
  EXPECT_EQ(of("aten.add_.Tensor(%x, %y)"), "p for q");
  EXPECT_EQ(of("aten.view(%x, [-1])"), "p for q");
  EXPECT_EQ(of("aten.to.dtype(%x, f64)"), "p for q");
  EXPECT_EQ(of("aten._unsafe_view(%x, [-1])"), "p for q");
  EXPECT_EQ(of("aten.var.correction(%x, [0])"), "p for q");
  EXPECT_EQ(of("aten.matmul(%x, %y)"), "p for q");  // not the same below autograd
  EXPECT_EQ(of("aten.relu(%x)"), "p for q, a for b");
  EXPECT_EQ(of("aten.linear(%x, %y)"), "p for q, a for b");
}

TEST(FindRepeats, S1_NoWriteLiesBetween) {
  const auto between = [](const std::string& node) {
    return Shared(" %v = aten.clone(%y)\n %a = aten.exp(%x)\n" + node +
                  " %b = aten.exp(%x)\n %z = aten.sub.Tensor(%a, %b)\n return %z\n");
  };
  EXPECT_EQ(between(""), "a for b");
  EXPECT_EQ(between(" %w = aten.add_.Scalar(%x, 1)\n"), "");
  EXPECT_EQ(between(" %w = aten.add_.Scalar(%v, 1)\n"), "");
  EXPECT_EQ(between(" %w = aten.batch_norm(%v, None, None, None, None, True, 0.1, 1e-05, True)\n"), "");
  EXPECT_EQ(between(" aten._assert_async(%v)\n"), "");
  EXPECT_EQ(between(" %w = quantized.relu6(%v)\n"), "");  // not torch's own, for all we know
  // Nodes that were equal before a write are not equal after it.
  EXPECT_EQ(Shared(" %a = aten.exp(%x)\n %b = aten.exp(%x)\n %w = aten.add_.Scalar(%a, 1)\n %s = aten.sin(%a)\n"
                   " %t = aten.sin(%b)\n %z = aten.sub.Tensor(%s, %t)\n return %z\n"),
            "");
}

TEST(FindRepeats, S2_NobodyWritesToItOrHasAView) {
  const auto with = [](const std::string& node, const std::string& output = "") {
    return Shared(" %a = aten.exp(%x)\n %b = aten.exp(%x)\n %z = aten.sub.Tensor(%a, %b)\n" + node + " return %z" +
                  output + "\n");
  };
  EXPECT_EQ(with(" %w = aten.cos(%a)\n", ", %w"), "a for b");
  EXPECT_EQ(with(" %w = aten.add_.Scalar(%a, 1)\n"), "");
  EXPECT_EQ(with(" %w = aten.add_.Scalar(%b, 1)\n"), "");
  EXPECT_EQ(with(" %w = aten.view(%b, [-1])\n", ", %w"), "");
  EXPECT_EQ(with(" %w = aten.to.dtype(%a, f32)\n", ", %w"), "");
  EXPECT_EQ(with(" %w = aten.dropout(%a, 0.5, False)\n", ", %w"), "");  // gives it back
  EXPECT_EQ(with(" %w = aten._unsafe_view(%a, [-1])\n", ", %w"), "");   // not in the schema
  EXPECT_EQ(with(" %w : tensors = aten.unsafe_split.Tensor(%b, 1)\n", ", %w"), "");
  EXPECT_EQ(with(" %w = aten.is_set_to(%a, %b)\n", ", %w"), "");
  EXPECT_EQ(with(" %w = aten.cos(%a)  {grad_mode(on)}\n", ", %w"), "");  // might save it for backward
  EXPECT_EQ(with(" %w = aten.stack([%y, %b])\n", ", %w"), "a for b");
  EXPECT_EQ(with(" %w = aten.broadcast_tensors([%y, %b])\n", ", %w"), "");
  EXPECT_EQ(with(" %w : int = size(%b, 0)\n %c = aten.mul.Tensor(%z, %w)\n", ", %c"), "a for b");
}

TEST(FindRepeats, S2_OneOfThemAtMostIsAnOutput) {
  const std::string nodes = " %a = aten.exp(%x)\n %b = aten.exp(%x)\n %c = aten.exp(%x)\n";
  const std::string used = nodes + " %z = aten.addcmul(%a, %b, %c)\n";
  EXPECT_EQ(Shared(used + " return %z\n"), "a for b, a for c");
  EXPECT_EQ(Shared(used + " return %z, %a\n"), "a for b, a for c");
  EXPECT_EQ(Shared(used + " return %z, %b, %b\n"), "a for b, a for c");
  EXPECT_EQ(Shared(used + " return %z, %a, %c\n"), "a for b");
  EXPECT_EQ(Shared(nodes + " return %a, %b, %c\n"), "");
}

TEST(FindRepeats, S2_OpsOfSeveralResults) {
  const std::string nodes = " %v, %i = aten.topk(%x, 2)\n %w, %j = aten.topk(%x, 2)\n %z = aten.mul.Tensor(%v, %w)\n";
  EXPECT_EQ(Shared(nodes + " return %z, %i\n"), "v for w, i for j");
  EXPECT_EQ(Shared(nodes + " return %z, %j\n"), "v for w, i for j");
  EXPECT_EQ(Shared(nodes + " return %z, %i, %j\n"), "");
  EXPECT_EQ(Shared(nodes + " %u = aten.add_.Scalar(%j, 1)\n return %z\n"), "");
}

TEST(FindRepeats, S3_NothingIsKeptForIt) {
  const std::string a = " %a = aten.exp(%x)\n %s = aten.sin(%a)\n", b = " %b = aten.exp(%x)\n %c = aten.cos(%b)\n";
  const std::string end = " %z = aten.mul.Tensor(%s, %c)\n return %z\n";
  EXPECT_EQ(Shared(a + b + end), "a for b");
  EXPECT_EQ(Shared(a + " %m : int = int.add(%n, 1)\n" + b + " %o = aten.mul.Tensor(%c, %m)\n return %o, %s\n"),
            "a for b");
  EXPECT_EQ(Shared(a + " %o = aten.neg(%y)\n" + b + " %z = aten.addcmul(%s, %c, %o)\n return %z\n"), "");
  // It is needed later, too.
  EXPECT_EQ(Shared(a + " %o = aten.neg(%y)\n" + b + " %z = aten.addcmul(%a, %c, %o)\n return %z, %s\n"), "a for b");
  EXPECT_EQ(Shared(a + " %o = aten.neg(%y)\n" + b + " %z = aten.addcmul(%s, %c, %o)\n return %z, %a\n"), "a for b");
}

TEST(FindRepeats, S3_ARepeatedChainIsOneRepeat) {
  const std::string first = " %a1 = aten.mul.Tensor(%x, 2)\n %a2 = aten.add.Tensor(%a1, 1)\n %s = aten.sin(%a2)\n";
  const std::string second = " %b1 = aten.mul.Tensor(%x, 2)\n %b2 = aten.add.Tensor(%b1, 1)\n %c = aten.cos(%b2)\n";
  EXPECT_EQ(Shared(first + second + " %z = aten.mul.Tensor(%s, %c)\n return %z\n"), "a1 for b1, a2 for b2");
  // %b2 is not shared, so %b1 would be kept for it, and for nothing else.
  EXPECT_EQ(Shared(first + second + " %w = aten.neg_(%b2)\n return %s, %w\n"), "");
  EXPECT_EQ(Shared(first + " %o = aten.neg(%y)\n" + second + " %z = aten.addcmul(%s, %c, %o)\n return %z\n"), "");
}

TEST(FindRepeats, S3_ARepeatOfARepeat) {
  EXPECT_EQ(Shared(" %a = aten.exp(%x)\n %s = aten.sin(%a)\n %b = aten.exp(%x)\n %o = aten.neg(%s)\n"
                   " %t = aten.tan(%b)\n %c = aten.exp(%x)\n %u = aten.tanh(%c)\n return %o, %t, %u\n"),
            "a for b, a for c");
}

TEST(FindRepeats, S3_TheLatestThatIsNotSharedServesTheNext) {
  EXPECT_EQ(Shared(" %a = aten.exp(%x)\n %s = aten.sin(%a)\n %o = aten.neg(%s)\n %b = aten.exp(%x)\n"
                   " %t = aten.tan(%b)\n %c = aten.exp(%x)\n %u = aten.tanh(%c)\n return %o, %t, %u\n"),
            "b for c");
}

TEST(FindRepeats, NumbersInAnyState) {
  const std::string end = " %z = aten.add.Tensor(%x, %a, alpha=%b)\n return %z\n";
  for (const char* state : {"grad_mode(on)", "grad_mode(off)"}) {
    EXPECT_EQ(Shared(" %a : int = int.add(%n, 1)\n %b : int = int.add(%n, 1)\n" + end, state), "a for b");
    EXPECT_EQ(Shared(" %a : int = int.add(%n, 1)\n %b : int = int.add(%n, 2)\n" + end, state), "");
    EXPECT_EQ(Shared(" %a : int = int.add(%n, 1)\n %b : int = int.sub(%n, 1)\n" + end, state), "");
    EXPECT_EQ(Shared(" %a : int = size(%x, 0)\n %b : int = size(%x, 0)\n" + end, state), "a for b");
    EXPECT_EQ(Shared(" %a : int = size(%x, 0)\n %b : int = size(%x, 1)\n" + end, state), "");
    EXPECT_EQ(Shared(" %a : int = size(%x, 0)\n %w = aten.resize_(%x, [3])\n %b : int = size(%x, 0)\n" + end, state),
              "");
    EXPECT_EQ(
        Shared(" %a : int = int.add(%n, 1)\n %w = aten.add_.Scalar(%x, 1)\n %b : int = int.add(%n, 1)\n" + end, state),
        "a for b");
    EXPECT_EQ(Shared(" %c : int = int.add(%n, 1)\n %d : int = int.add(%n, 1)\n %a : int = int.mul(%c, 2)\n"
                     " %b : int = int.mul(%d, 2)\n" +
                         end,
                     state),
              "c for d, a for b");
    EXPECT_EQ(Shared(" %a : int = int.add(%n, 1)\n %b : int = int.add(%n, 1)\n return %a, %b\n", state), "a for b");
    EXPECT_EQ(Shared(" %a : int = int.add(%n, 1)\n %s = aten.sin(%x)\n %t = aten.sin(%s)\n"
                     " %b : int = int.add(%n, 1)\n %z = aten.mul.Tensor(%t, %b)\n return %z\n",
                     state),
              "a for b");
    EXPECT_EQ(Shared(" %l : tensors = aten.split.Tensor(%x, 1)\n %a = list.item(%l, 0)\n %b = list.item(%l, 0)\n"
                     " return %a, %b\n",
                     state),
              "");
  }
}

TEST(FindRepeats, NumbersOfTensorsThatRepeatInSomeRunsOnly) {
  EXPECT_EQ(Shared(" %a = aten.exp(%x)\n %b = aten.exp(%x)\n %i : int = size(%a, 0)\n %j : int = size(%b, 0)\n"
                   " %z = aten.add.Tensor(%a, %b, alpha=%j)\n return %z, %i\n"),
            "a for b");
}

}  // namespace
}  // namespace frametap
