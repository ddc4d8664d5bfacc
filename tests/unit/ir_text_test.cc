// Laws: graph/G2, literal/L1, source/S1, source/S2, segment_ir/T1, segment_ir/T2, segment_ir/T3
#include <gtest/gtest.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/ones.h>

#include <bit>
#include <limits>
#include <random>

#include "absl/strings/str_cat.h"
#include "ir/graph/literal.h"
#include "ir/segment/rows.h"
#include "ir/segment/state.h"
#include "ir/text/parse.h"
#include "ir/text/text.h"

namespace frametap {
namespace {

const char* const kGraphs[] = {
    R"(graph (%x : f32[8, 32], %w : f32[64, 32], %b : f32[64]) {
  %h : f32[8, 64] = aten.linear(%x, %w, %b)  @ Linear.forward:125:15
  %0 : f32[] = aten.sum(%h)                  @ step:12:7
  %1 : bool[] = aten.gt.Scalar(%0, 0)        @ step:12
  return %h, %1
}
)",
    R"(graph (%x : f32[2, ?]) under {grad_mode(off)} {
  constant %c0 : f32[3]
  %0 : f32[3] = aten.lift_fresh(%c0)
  %1 : f32[2, 3] = aten.add.Tensor(%x, %0, alpha=2)
  %2 : bf16[2, 3] = aten.to.dtype(%1, bf16, True)
  %3 : f32[2, 3] = aten._to_copy(%2, dtype=f32, device=cpu, memory_format=preserve)
  %4 : f32[2, 3] = aten.contiguous(%3, memory_format=channels_last)
  %5 = aten.zeros([2, 3], dtype=f32, layout=strided, pin_memory=False)
  %6 = aten.empty.memory_format([2], device=cuda:1)
  %7 = aten.mul.Tensor(%4, 2.5)
  return %7, %5, %6
}
)",
    R"(graph (%x : f32[4], %n : int, %k : float) {
  %values : f32[2], %indices : i64[2] = aten.topk(%x, 2, largest=False)
  %0 : tensors = aten.split.Tensor(%x, %n)
  %1 : f32[min(%n, 4)] = list.item(%0, 0)
  %2 : f32[min(%n, 4 - %n)] = list.item(%0, 1)
  %3 = aten.cat([%1, %2, %values], -1)  {grad_mode(off), autocast(bf16)}
  %4 = aten.index.Tensor(%3, [None, %indices])  {inference_mode(on), autocast_cache(off)}  @ f:2:3
  %5 : int = int.add(%n, 1)
  %6 : float = float.mul(%k, -0.0)
  %7 = aten.view(%3, [%5, -1])
  aten._assert_async(%x)
  %8 = aten.mul.Tensor(%x, %k)
  return %4, %6, %7, %8
}
)",
    R"(graph (%x : f32[1, 3, 8, 8]) {
  %0 = aten.clamp(%x, -inf, inf)
  %1 = aten.full([2], nan)
  %2 = aten.full([], complex(1.0, -0.0))
  %3 = aten.einsum("ij,\"\\\n", [%x])
  %4 = aten.randn.generator([2], generator=generator(default))
  %5 = aten.avg_pool2d(%x, [2, 2], count_include_pad=False)
  %6 = aten.upsample_nearest2d.vec(%x, None, [2.0, 0.1])
  %7 = aten.add.Tensor(%x, 1e-05)
  %8 = aten.full([], 1e+30)
  %9 = aten.convolution(%x, %x, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
}
)",
    // Sizes in symbols: of inputs, of results without a rule, and with numbers of the graph.
    R"(graph (%x : f32[s0, 3, s1], %n : int, %x_size0 : int = s0) for s0 = 5, s1 = 9, u0 = 7, u1 = 3 {
  %0 : f32[s0, 3, (s1 + 1)//2] = aten.slice.Tensor(%x, 2, step=2)
  %1 : i64[u0, u1] = aten.nonzero(%x)
  %2 : i64[2*u0, u1] = aten.cat([%1, %1])
  %3 : int = int.add(%x_size0, 1)
  %4 : f32[s0 + 1, %n] = aten.zeros([%3, %n])
  return %0, %2, %4
}
)",
    "graph () {\n}\n",
};

const char* const kSegments[] = {
    R"(segment step#0 {
  entry step:start
  guard {
    L.self : type(Model) watched
      .linear : type(Linear) watched
        .weight = %w
        .bias = %b
      .layers[0].0 : type(Linear) watched
      ["mask"] : == 3
    L.x = %x : tensor f32[*, 32] cpu
      .size(0) = %n : > 2
    L.<attr>(".0") : len 2
    G.scale : == 2.0
    torch.nn.Module : is Module
    L.y : class A unchanged
      .<closure>[0].keys[1].<default>["x"].<default>[2].__dict__.__self__.<referent>.<id>.len
    S[0].stride(1) : == 1
    pinned("<built-in function len>")
    state : grad_mode(on) autocast(off)
  }
  graph (%w : f32[64, 32], %b : f32[64], %x : f32[8, 32], %n : int) {
    %h : f32[8, 64] = aten.linear(%x, %w, %b)  @ Linear.forward:125:15
    %0 : f32[] = aten.sum(%h)                  @ step:12:7
    return %h, %0
  }
  exit resume step:12:7 because branch_on_tensor "is_nonzero" {
    step : self = L.self, x = L.x, h = %h, .0 = iter(const 1 "iter", (L.x,), const 2 "3") | stack = [%0, null]
  }
}
)",
    R"(segment f.<locals>.g#1 {
  entry f.<locals>.g:13:12
  guard {
  }
  graph (%x : f32[2]) {
    %0 = aten.relu(%x)  @ f.<locals>.<lambda>:15:11
    return %0
  }
  effect { setattr L.self "calls" const 0 "3"  @ step:14:4 }
  exit return (%0, const 1, [], &1=[%0], {const 2 "'a'": &1, L.y: null}, set{%0,}, slice(null, %0, null),) at g:15
}
)",
    R"(segment a#0 {
  entry a:start
  guard {
    state : grad_mode(on)
  }
  graph () {
  }
  effect {
    setitem L.d const 0 "'k'" const 1
    delitem L.d const 0
    delattr L.o "x"
    setglobal F "counter" const 3
    setcell C.n const ?  @ a:1:0
    state "grad_mode" const 1 "False"
    call L.d "update" (const 1,)
    advance S[0].<over>[0] const 5 "3"
  }
  exit resume a:4 because unknown_callable {
    a:3 : | stack = [method(L.f, L.s), cell(null), new const 4 "Point"(const 1){"x": null, "y z": L.q}, new const ? "T" #2()]
  }
}
)",
    R"(segment third#1 {
  entry third:5:4 in second:8:8 in f.<locals>.first:11:8
  guard {
    L1.x = %x : tensor f32[*] cpu
    C2.k : == 3
    S12[1] : type(range_iterator)
      .<left> : > 0
      .<over>[1][0].<next>[2].<key>[0].keys[1]
      .<count>[3] : == 5
    F1.__closure__[0] : cell
  }
  graph (%x : f32[2]) {
    %0 = aten.relu(%x)  @ second:9:11
    return %0
  }
  exit resume third:4:4 because unknown_callable "print" {
    first:11 : x = L2.x | stack = [null, G.second, %0]
    second:8 : | stack = [null, G.third, L1.<attr>(".0")]
    third : x = %0 | stack = [null, B.print]
  }
}
)",
};

// The one above with `set{%0,}` is how a person might write it; the printer leaves the comma out.
std::string Canonical(std::string text) {
  const size_t at = text.find("set{%0,}");
  if (at != std::string::npos) text.replace(at, 8, "set{%0}");
  return text;
}

// source/S2.
TEST(TextTest, TheHashOfASourceIsThatOfItsName) {
  SourceTable table;
  const auto add = [&](SourceId parent, Accessor accessor, const char* text, int64_t index = 0) {
    return table.Add({parent, accessor, index, text});
  };
  const SourceId function = add({}, Accessor::kFunction, ""), local = add({}, Accessor::kLocal, "x");
  const SourceId globals = add({}, Accessor::kPinned, "G"), builtins = add({}, Accessor::kPinned, "B");
  add(function, Accessor::kGlobal, "scale");
  add(globals, Accessor::kGlobal, "scale");
  add(builtins, Accessor::kGlobal, "len");
  add(add({}, Accessor::kPinned, "torch.nn"), Accessor::kGlobal, "F");
  const SourceId item = add(add(local, Accessor::kAttr, "odd name"), Accessor::kItem, "", 3);
  const SourceId length = add(item, Accessor::kLength, "");
  const char* const names[] = {"F", "L.x", "pinned(\"G\")", "pinned(\"B\")", "G.scale", "G.scale", "B.len"};
  for (size_t i = 0; i < std::size(names); ++i) EXPECT_EQ(table.Name(SourceId(i)), names[i]);
  for (size_t i = 0; i < table.size(); ++i) {
    EXPECT_EQ(table.NameHash(SourceId(i)), HashOf(table.Name(SourceId(i)))) << table.Name(SourceId(i));
  }
  EXPECT_EQ(table.Name(length), LengthName(table.Name(item)));
  EXPECT_EQ(table.NameHash(length), LengthNameHash(table.NameHash(item)));
  EXPECT_NE(table.NameHash(item), table.NameHash(length));
}

// Parses a predicate beside a source that has the path "L.x" and the number 0.
std::optional<Predicate> Parsed(const std::string& text) {
  return ParsePredicate(text, [&](size_t at) -> std::optional<SourceId> {
    return text.substr(at) == "L.x" ? std::optional(SourceId(0)) : std::nullopt;
  });
}

SourceTable OneSource() {
  SourceTable table;
  Source source;
  source.text = "x";
  table.Add(std::move(source));
  return table;
}

// predicate/P1, predicate/P2.
TEST(TextTest, EachFormOfPredicateIsFoundInItsText) {
  const std::pair<std::string, std::string> arguments[] = {
      {"text", "'a b'"}, {"name", "a.b"},
      {"number", "3"},   {"formula", "L.x // 2 > L.n"},
      {"source", "L.x"}, {"tensor", "f32[*, 3]{3, 1} offset cpu grad"}};
  const SourceTable sources = OneSource();
  for (size_t i = 0; i < PredicateRowCount(); ++i) {
    const auto form = static_cast<Predicate::Form>(i);
    const HoleIn hole(RowOf(form).text);
    std::string text(RowOf(form).text), argument;
    for (const auto& [name, example] : arguments) {
      if (hole.name != name) continue;
      argument = example;
      text = std::string(hole.before) + argument + std::string(hole.after);
    }
    ASSERT_EQ(hole.exists(), !argument.empty()) << text;
    const std::optional<Predicate> predicate = Parsed(text);
    ASSERT_TRUE(predicate.has_value()) << text;
    EXPECT_EQ(predicate->form, form) << text;
    EXPECT_TRUE(HasItsArgument(*predicate)) << text;
    EXPECT_EQ(ToString(*predicate, sources), text);
    EXPECT_EQ(Parsed(ToString(*predicate, sources)), predicate);
  }
  EXPECT_FALSE(HasItsArgument({Predicate::Form::kLength, "three"}));
  EXPECT_FALSE(HasItsArgument({Predicate::Form::kNoHooks, int64_t{3}}));
}

TEST(TextTest, PredicatesAreDistinguishedByTheirForm) {
  using Form = Predicate::Form;
  const std::pair<std::string, Form> cases[] = {
      {"is L.x", Form::kIsSource},    {"is not L.x", Form::kIsNotSource}, {"is lib.g", Form::kIs},
      {"is not lib.g", Form::kIsNot}, {"== 'L.x < 3'", Form::kEqual},     {"L.x.size(0) // 2 > L.n", Form::kNumbers},
      {"not < 2.0", Form::kNotLess},  {"int", Form::kFixedType}};
  for (const auto& [text, form] : cases) {
    const std::optional<Predicate> predicate = Parsed(text);
    ASSERT_TRUE(predicate.has_value()) << text;
    EXPECT_EQ(predicate->form, form) << text;
  }
  const std::optional<Predicate> predicate = Parsed("tensor i64[*, 2]{2, 1} offset cuda:1 grad");
  ASSERT_TRUE(predicate.has_value());
  const auto& tensor = std::get<Predicate::Tensor>(predicate->argument);
  EXPECT_EQ(tensor.dtype, c10::kLong);
  EXPECT_EQ(tensor.sizes, (Sizes{-1, 2}));
  EXPECT_EQ(*tensor.strides, (Sizes{2, 1}));
  EXPECT_TRUE(tensor.has_offset && tensor.requires_grad);
  EXPECT_EQ(tensor.device.str(), "cuda:1");
  EXPECT_TRUE(std::get<Predicate::Tensor>(Parsed("tensor f32[] cpu")->argument).sizes.empty());
  for (const char* text : {"", "len x", "tensor f33[*] cpu", "tensor f32[*]", "a kind that is not there", "len "}) {
    EXPECT_FALSE(Parsed(text).has_value()) << text;
  }
}

std::string WithParts(const std::string& guard, const std::string& effect, const std::string& exit) {
  return absl::StrCat("segment f#0 {\n  entry f:start\n  guard {\n    ", guard, "\n  }\n  graph () {\n  }\n", effect,
                      "  ", exit, "\n}\n");
}

// Words that are not in a row are errors with a place, in each part of a segment.
TEST(TextTest, T3_EachPartOfASegmentHasARow) {
  const std::string guard = "L.x : int", end = "exit return null at f:1", frame = " {\n    f : | stack = []\n  }";
  const std::pair<std::string, std::string> bad[] = {
      {WithParts("state : grad_mode(maybe)", "", end),
       "line 4, column 13: 'grad_mode(maybe)' is not a field of the state"},
      {WithParts(guard, "  effect { frobnicate L.x }\n", end), "'frobnicate' is not an effect"},
      {WithParts(guard, "  effect { state \"grade\" const 1 }\n", end), "'grade' is not a field that an effect sets"},
      {WithParts(guard, "", "exit resume f:1 because no_reason" + frame), "'no_reason' is not a reason"},
      {WithParts(guard, "", "exit resume f:1 because exception_left" + frame), "a reason that ends a segment"},
      {WithParts(guard, "", "exit leave f:1"), "expected 'resume'"},
  };
  for (const auto& [text, why] : bad) {
    const absl::StatusOr<SegmentIr> segment = ParseSegment(text);
    ASSERT_FALSE(segment.ok()) << text;
    EXPECT_NE(segment.status().message().find(why), std::string::npos) << segment.status();
  }
  const absl::StatusOr<SegmentIr> good = ParseSegment(WithParts(
      "L.x : is L.y", "  effect { state \"grad_mode\" const 1 }\n", "exit resume f:1 because numpy_code" + frame));
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_EQ(good->exit.reason, Reason::numpy_code);
  EXPECT_EQ(good->effects[0].state, StateSwitch::kGradMode);
  EXPECT_EQ(good->sources.Name(std::get<SourceId>(good->guards[0].predicate->argument)), "L.y");
}

// Every row of a table has a name of its own, by which it is found.
TEST(TextTest, EachRowIsFoundByItsWord) {
  for (size_t i = 0; i < EffectRowCount(); ++i) {
    const EffectRow& row = RowOf(static_cast<Effect::Kind>(i));
    EXPECT_EQ(EffectOf(row.word), &row) << row.word;
  }
  for (size_t i = 0; i < ReasonCount(); ++i) {
    EXPECT_EQ(ReasonOf(RowOf(static_cast<Reason>(i)).name), static_cast<Reason>(i));
  }
  EXPECT_EQ(StateSwitchOf(WordOf(StateSwitch::kAutocastNesting)), StateSwitch::kAutocastNesting);
  EXPECT_EQ(EffectOf("frobnicate"), nullptr);
  EXPECT_FALSE(ReasonOf("no_reason").has_value());
}

TEST(TextTest, EachFieldOfTheStateParsesToItself) {
  for (const char* text : {"grad_mode(on)", "grad_mode(off)", "inference_mode(on)", "autocast(off)", "autocast(bf16)",
                           "default_dtype(f64)", "autocast_cache(off)", "forward_grad(off)", "anomaly_mode(on)",
                           "deterministic(on)", "modes(on)", "autocast_dtype(f16)"}) {
    const std::optional<StateFact> fact = ParseStateFact(text);
    ASSERT_TRUE(fact.has_value()) << text;
    EXPECT_EQ(ToString(*fact), text);
  }
  for (const char* text :
       {"grad_mode", "grad_mode(1)", "grad_mode(f32)", "default_dtype(off)", "mode(on)", "autocast(on)", ""}) {
    EXPECT_FALSE(ParseStateFact(text).has_value()) << text;
  }
}

TEST(TextTest, T3_AGuardHasAFormOfTheTable) {
  const absl::StatusOr<SegmentIr> segment = ParseSegment(
      "segment f#0 {\n  entry f:start\n  guard {\n    L.x : nothing of the kind\n  }\n  graph () {\n  }\n"
      "  exit return null at f:1\n}\n");
  ASSERT_FALSE(segment.ok());
  EXPECT_NE(segment.status().message().find("'nothing of the kind' is not a predicate"), std::string::npos)
      << segment.status();
}

TEST(TextTest, T1_PrintOfParseIsTheText) {
  for (const std::string text : kGraphs) {
    const absl::StatusOr<Graph> graph = ParseGraph(text);
    ASSERT_TRUE(graph.ok()) << graph.status() << "\n" << text;
    EXPECT_EQ(Print(*graph), text);
  }
  for (const std::string text : kSegments) {
    const absl::StatusOr<SegmentIr> segment = ParseSegment(text);
    ASSERT_TRUE(segment.ok()) << segment.status() << "\n" << text;
    EXPECT_EQ(Print(*segment), Canonical(text));
  }
}

TEST(TextTest, T2_ParseOfPrintHasTheSameStructure) {
  for (const char* text : kGraphs) {
    const Graph a = *ParseGraph(text);
    const Graph b = *ParseGraph(Print(a));
    ASSERT_EQ(a.nodes.size(), b.nodes.size());
    ASSERT_EQ(a.values.size(), b.values.size());
    for (size_t i = 0; i < a.values.size(); ++i) {
      EXPECT_EQ(a.values[i].name, b.values[i].name);
      EXPECT_EQ(a.values[i].type, b.values[i].type);
      EXPECT_EQ(a.values[i].def, b.values[i].def);
    }
    EXPECT_EQ(a.states, b.states);
    for (size_t i = 0; i < a.nodes.size(); ++i) {
      EXPECT_EQ(a.nodes[i].op_name(), b.nodes[i].op_name());
      EXPECT_EQ(a.nodes[i].args.size(), b.nodes[i].args.size());
      EXPECT_EQ(a.nodes[i].state, b.nodes[i].state);
    }
    ASSERT_EQ(a.symbols.size(), b.symbols.size());
    for (size_t i = 0; i < a.symbols.size(); ++i) {
      EXPECT_EQ(a.symbols[i].tensor, b.symbols[i].tensor);
      EXPECT_EQ(a.symbols[i].dim, b.symbols[i].dim);
      EXPECT_EQ(a.symbols[i].number, b.symbols[i].number);
    }
  }
}

// Every operator of the dispatcher, with its defaults and with other arguments.
TEST(TextTest, T1_EveryOperator) {
  size_t ops = 0;
  size_t untold = 0;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const std::optional<c10::OperatorHandle> op = c10::Dispatcher::singleton().findSchema(name);
    if (!op) continue;
    for (const bool defaults : {true, false}) {
      Graph graph;
      Node node;
      node.op = op;
      const ValueId x = graph.AddInput("x", Type());
      for (const c10::Argument& a : op->schema().arguments()) {
        const c10::Type* real = StripOptional(a.real_type().get());
        if (defaults && a.default_value()) {
          node.args.push_back(Arg::Const(*a.default_value()));
        } else if (real->kind() == c10::TypeKind::ScalarTypeType) {
          node.args.push_back(Arg::Const(static_cast<int64_t>(c10::ScalarType::BFloat16)));
        } else if (real->kind() == c10::TypeKind::FloatType) {
          node.args.push_back(Arg::Const(-1e-7));
        } else if (real->kind() == c10::TypeKind::DeviceObjType) {
          node.args.push_back(Arg::Const(c10::Device("cuda:1")));
        } else if (real->kind() == c10::TypeKind::ListType) {
          node.args.push_back(Arg::List({Arg::Of(x), Arg::Of(x)}));
        } else {
          node.args.push_back(Arg::Of(x));
        }
      }
      for (size_t i = 0; i < op->schema().returns().size(); ++i) node.outputs.push_back(graph.NewValue("", Type()));
      graph.AddNode(std::move(node));
      graph.NameResults();
      const absl::Status status = Verify(graph);
      untold += absl::IsUnimplemented(status);
      if (absl::IsUnimplemented(status)) continue;
      ASSERT_TRUE(status.ok()) << status << Print(graph);
      const std::string text = Print(graph);
      const absl::StatusOr<Graph> again = ParseGraph(text);
      ASSERT_TRUE(again.ok()) << again.status() << text;
      ASSERT_EQ(Print(*again), text);
      ++ops;
    }
  }
  EXPECT_GT(ops, 5000u);
  EXPECT_LT(untold, 20u);
}

TEST(TextTest, T3_VerifyHoldsForWhatParses) {
  for (const char* text : kGraphs) EXPECT_TRUE(Verify(*ParseGraph(text)).ok());
  for (const char* text : kSegments) EXPECT_TRUE(Verify(*ParseSegment(text)).ok());
}

TEST(TextTest, G2_ArgumentsAreCompleteAfterParsing) {
  const Graph graph =
      *ParseGraph("graph (%x : f32[2]) {\n %0 = aten.add.Tensor(%x, %x)\n %1 = aten.clamp(%0, max=2)\n}\n");
  ASSERT_EQ(graph.nodes[0].args.size(), 3u);
  EXPECT_EQ(graph.nodes[0].args[2].constant.toInt(), 1);
  EXPECT_TRUE(graph.nodes[1].args[1].constant.isNone());
  EXPECT_EQ(graph.nodes[1].args[2].constant.toInt(), 2);
}

TEST(TextTest, ListsHaveTheElementTypeOfTheSchema) {
  const Graph graph = *ParseGraph(
      "graph (%x : f32[2]) {\n %0 = aten.view(%x, [1, 2])\n %1 = aten.index.Tensor(%x, [None])\n"
      " %2 = aten.upsample_nearest2d.vec(%x, None, [2, 1])\n %3 = aten.sum.dim_IntList(%x, [])\n}\n");
  EXPECT_TRUE(graph.nodes[0].args[1].constant.isIntList());
  EXPECT_TRUE(graph.nodes[1].args[1].constant.isOptionalTensorList());
  EXPECT_TRUE(graph.nodes[2].args[2].constant.isDoubleList());
  EXPECT_TRUE(graph.nodes[3].args[1].constant.isIntList());
}

TEST(TextTest, L1_FloatsParseToTheSameBits) {
  std::mt19937_64 random(1);
  std::vector<double> values = {0.0,
                                -0.0,
                                1.0,
                                0.1,
                                1e22,
                                1e-300,
                                std::numeric_limits<double>::denorm_min(),
                                std::numeric_limits<double>::max(),
                                std::numeric_limits<double>::infinity(),
                                -std::numeric_limits<double>::infinity(),
                                std::numeric_limits<double>::quiet_NaN(),
                                -std::numeric_limits<double>::quiet_NaN(),
                                std::numeric_limits<double>::signaling_NaN()};
  for (int i = 0; i < 300; ++i) values.push_back(std::bit_cast<double>(static_cast<uint64_t>(random())));
  for (const double value : values) {
    const std::string text = "graph () {\n  %0 = aten.full([], " + FloatText(value) + ")\n}\n";
    const absl::StatusOr<Graph> graph = ParseGraph(text);
    ASSERT_TRUE(graph.ok()) << graph.status() << text;
    EXPECT_EQ(std::bit_cast<uint64_t>(graph->nodes[0].args[1].constant.toDouble()), std::bit_cast<uint64_t>(value))
        << text;
    EXPECT_EQ(Print(*graph), text);
  }
}

TEST(TextTest, StringsOfAnyBytes) {
  std::string all;
  for (int c = 0; c < 256; ++c) all += static_cast<char>(c);
  for (const std::string& s : {std::string(), std::string("a b"), std::string("h\xc3\xa9\xe2\x82\xac"), all}) {
    const std::string text = "graph (%x : f32[2]) {\n  %0 = aten.einsum(" + Quoted(s) + ", [%x])\n}\n";
    const absl::StatusOr<Graph> graph = ParseGraph(text);
    ASSERT_TRUE(graph.ok()) << graph.status();
    EXPECT_EQ(graph->nodes[0].args[0].constant.toStringRef(), s);
    EXPECT_EQ(Print(*graph), text);
  }
}

TEST(TextTest, EveryDtypeHasAName) {
  for (int i = 0; i < static_cast<int>(c10::ScalarType::NumOptions); ++i) {
    const auto dtype = static_cast<c10::ScalarType>(i);
    EXPECT_EQ(ParseDtype(DtypeName(dtype)), dtype) << DtypeName(dtype);
  }
  EXPECT_EQ(ParseDtype("f33"), std::nullopt);
}

TEST(TextTest, SizesAreWorkedOutWithTheHints) {
  const Graph graph = *ParseGraph(
      "graph (%x : f32[s0, 3], %n : int) for s0 = 7, u0 = 4 {\n"
      "  %0 : f32[(s0 - 1)//2 + 1, -s0 % 4, 2**3 - 2*u0] = aten.relu(%x)\n"
      "  %1 : f32[max(s0, u0), broadcast(1, s0), %n + 1] = aten.relu(%x)\n}\n");
  EXPECT_EQ(graph.value(graph.inputs[0]).type.sizes, (Sizes{7, 3}));
  EXPECT_EQ(graph.value(graph.nodes[0].outputs[0]).type.sizes, (Sizes{4, 1, 0}));
  EXPECT_EQ(graph.value(graph.nodes[1].outputs[0]).type.sizes, (Sizes{7, 7, -1}));
}

TEST(TextTest, SymbolsThatAreWrong) {
  const auto fault = [](const std::string& text) { return std::string(ParseGraph(text).status().message()); };
  const auto body = [&](const std::string& size) {
    return fault("graph (%x : f32[s0]) for s0 = 4 {\n  %0 : f32[" + size + "] = aten.relu(%x)\n}\n");
  };
  EXPECT_EQ(fault("graph (%x : f32[s0]) {\n}\n"), "line 1, column 8: 's0' is not declared: 'for s0 = …'");
  EXPECT_EQ(fault("graph (%x : f32[s0, s0]) for s0 = 4 {\n}\n"), "line 1, column 8: 's0' is another size already");
  EXPECT_EQ(fault("graph (%x : f32[s0]) for s0 = 4, s0 = 5 {\n}\n"), "line 1, column 34: 's0' is declared twice");
  EXPECT_EQ(fault("graph (%n : int = s0) for s0 = 4 {\n}\n"), "line 1, column 19: 's0' is the size of no input");
  EXPECT_EQ(fault("graph (%x : f32[s0]) for s0 = -4 {\n}\n"), "line 1, column 31: a size is not negative");
  EXPECT_EQ(body("s1"), "line 2, column 12: there is no symbol 's1': the graph declares none");
  EXPECT_EQ(body("s0//0"), "line 2, column 12: this size has no value: a division by zero, or more than 64 bits");
  EXPECT_EQ(body("s0 - 5"), "line 2, column 12: a size is not negative");
  EXPECT_EQ(body("s0 +"), "line 2, column 16: expected a size");
  EXPECT_EQ(body("(s0"), "line 2, column 15: expected ')'");
  EXPECT_EQ(body(std::string(100, '(') + "s0"), "line 2, column 44: nested too deeply");
}

TEST(TextTest, PrintOptions) {
  PrintOptions bare;
  bare.positions = false;
  bare.types = false;
  const Graph graph = *ParseGraph(kGraphs[0]);
  EXPECT_EQ(Print(graph, bare),
            "graph (%x, %w, %b) {\n  %h = aten.linear(%x, %w, %b)\n  %0 = aten.sum(%h)\n  %1 = aten.gt.Scalar(%0, 0)\n"
            "  return %h, %1\n}\n");
  SegmentIr segment = *ParseSegment(kSegments[0]);
  segment.guards[0].why.function = "step";
  segment.guards[0].why.line = 3;
  segment.guards[0].why.col = 4;
  PrintOptions verbose;
  verbose.guard_lines = true;
  const std::string text = Print(segment, verbose);
  EXPECT_NE(text.find("L.self : type(Model) watched  @ step:3:4\n"), std::string::npos) << text;
  EXPECT_EQ(Print(*ParseSegment(text), verbose), text);
}

TEST(TextTest, NoTextNoVerify) {
  Graph graph = *ParseGraph("graph (%x : f32[2]) {\n %0 = aten.mul.Tensor(%x, 2)\n}\n");
  graph.nodes[0].args[1] = Arg::Const(at::ones({2}));
  EXPECT_FALSE(Verify(graph).ok());
  graph.nodes[0].args.pop_back();
  EXPECT_FALSE(Verify(graph).ok());
}

TEST(TextTest, WhatOnlyHasNoTextRuns) {
  Graph graph = *ParseGraph("graph (%x : f32[2]) {\n %0 = aten.neg(%x)\n %1 = aten.neg(%0)\n return %1\n}\n");
  graph.nodes[0].op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::set_", "source_Storage");
  graph.nodes[0].args.push_back(Arg::Const(at::ones({2}).storage()));
  EXPECT_EQ(Verify(graph).code(), absl::StatusCode::kUnimplemented) << Verify(graph);
  EXPECT_TRUE(VerifyRunnable(graph).ok()) << VerifyRunnable(graph);
  graph.nodes[1].args.pop_back();  // a later fault is not hidden
  EXPECT_EQ(VerifyRunnable(graph).code(), absl::StatusCode::kInvalidArgument) << VerifyRunnable(graph);
}

TEST(GraphTest, AConstantIsTheGraphsOwn) {
  Graph graph;
  const at::Tensor data = at::ones({2});
  graph.AddConstant("c", data);
  EXPECT_NE(graph.constants[0].second.data_ptr(), data.data_ptr());
}

TEST(GraphTest, StatesAreFoundAgain) {
  Graph graph;
  EagerState off;
  off.grad_mode = false;
  EXPECT_EQ(graph.AddState(EagerState()), StateId(0));
  EXPECT_EQ(graph.AddState(off), StateId(1));
  EXPECT_EQ(graph.AddState(off), StateId(1));
}

TEST(SourceTableTest, S1_EqualSourcesAreOne) {
  SourceTable table;
  const SourceId x = table.Add({SourceId(), Accessor::kLocal, 0, "x"});
  const SourceId w = table.Add({x, Accessor::kAttr, 0, "w"});
  EXPECT_EQ(table.Add({SourceId(), Accessor::kLocal, 0, "x"}), x);
  EXPECT_EQ(table.Add({x, Accessor::kAttr, 0, "w"}), w);
  EXPECT_NE(table.Add({x, Accessor::kModuleAttr, 0, "w"}), w);
  EXPECT_EQ(table.root(w), x);
  EXPECT_EQ(table.Name(w), "L.x.w");
}

struct BadText {
  const char* text;
  const char* want;  // begins the message
};

TEST(MalformedTextTest, ErrorsSayWhereAndWhat) {
  const BadText cases[] = {
      {"", "line 1, column 1: expected 'graph'"},
      {"graph", "line 1, column 6: expected '('"},
      {"graph (%x : f33[2]) {\n}", "line 1, column 13: 'f33' is not a dtype"},
      {"graph (%x : f32[2, -1]) {\n}", "line 1, column 20: a size is not negative"},
      {"graph (%x, %x) {\n}", "line 1, column 12: %x is defined twice"},
      {"graph (%x) {\n  %0 aten.relu(%x)\n}", "line 2, column 6: expected '=' after %0"},
      {"graph (%x) {\n  %0 = aten.relu(%y)\n}", "line 2, column 18: %y is not defined"},
      {"graph (%x) {\n  %0 = aten.relu(%0)\n}", "line 2, column 18: %0 is not defined"},
      {"graph (%x) {\n  %0 = aten.relux(%x)\n}",
       "line 2, column 8: there is no operator 'aten.relux'; near names: aten.relu"},
      {"graph (%x) {\n  %0 = aten.add(%x, %x)\n}",
       "line 2, column 8: there is no operator 'aten.add'; near names: aten.add."},
      {"graph (%x) {\n  %0 = aten.relu()\n}", "line 2, column 18: aten.relu needs the argument 'self'"},
      {"graph (%x) {\n  %0 = aten.relu(%x, 1)\n}",
       "line 2, column 22: aten.relu takes no argument without a name here"},
      {"graph (%x) {\n  %0 = aten.relu(%x, beta=1)\n}", "line 2, column 22: aten.relu has no argument 'beta'"},
      {"graph (%x) {\n  %0 = aten.view(%x, 3)\n}", "line 2, column 8: aten.view: argument 'size' wants SymInt[]"},
      {"graph (%x) {\n  %0 = aten.view(%x, [\"a\"])\n}", "line 2, column 8: aten.view: argument 'size' wants"},
      {"graph (%x) {\n  %0, %1 = aten.relu(%x)\n}", "line 2, column 3: aten.relu has 1 result, not 2"},
      {"graph (%x) {\n  %0 = aten.relu(%x) @ f\n}", "line 2, column 24: expected a position"},
      {"graph (%x) {\n  %0 = aten.relu(%x) {grad(off)}\n}", "line 2, column 23: expected grad_mode"},
      {"graph (%x) {\n  %0 = aten.full([], 99999999999999999999)\n}",
       "line 2, column 22: an integer of more than 64 bits"},
      {"graph (%x) {\n  return %y\n}", "line 2, column 10: %y is not defined"},
      {"graph (%x) {\n", "line 2, column 1: expected the name of an operator"},
      {"graph () {\n}\nx", "line 3, column 1: nothing more was expected"},
  };
  for (const BadText& c : cases) {
    const absl::StatusOr<Graph> graph = ParseGraph(c.text);
    ASSERT_FALSE(graph.ok()) << c.text;
    EXPECT_EQ(graph.status().code(), absl::StatusCode::kInvalidArgument);
    const std::string message(graph.status().message());
    EXPECT_EQ(message.substr(0, std::string(c.want).size()), c.want) << c.text;
  }
  EXPECT_FALSE(ParseSegment("segment a#0 {\n").ok());
}

TEST(MalformedTextTest, DeepNestingIsRefused) {
  const std::string deep = "graph (%x) {\n  %0 = aten.view(%x, " + std::string(100000, '[') + "\n}";
  EXPECT_FALSE(ParseGraph(deep).ok());
  const std::string exit = "segment a#0 {\n  entry a:start\n  guard {\n  }\n  graph () {\n  }\n  exit return ";
  EXPECT_FALSE(ParseSegment(exit + std::string(100000, '(')).ok());
}

// Small changes of good texts never crash, and what still parses obeys segment_ir/T1 from its second print on.
TEST(MalformedTextTest, MutatedTextsAreRefusedOrRight) {
  std::mt19937 random(7);
  const std::string spice = "%@{}()[]:=,.\"\\ \n-0e#&?<>_aLf\xc3";
  size_t parsed = 0;
  const auto mutate = [&](std::string text) {
    const size_t changes = 1 + random() % 3;
    for (size_t k = 0; k < changes && !text.empty(); ++k) {
      const size_t at = random() % text.size();
      switch (random() % 4) {
        case 0:
          text.erase(at, 1 + random() % 4);
          break;
        case 1:
          text.insert(at, 1, spice[random() % spice.size()]);
          break;
        case 2:
          text[at] = spice[random() % spice.size()];
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), random() % 12));
      }
    }
    return text;
  };
  for (int round = 0; round < 1500; ++round) {
    for (const char* sample : kGraphs) {
      const std::string text = mutate(sample);
      const absl::StatusOr<Graph> graph = ParseGraph(text);
      if (!graph.ok()) continue;
      ++parsed;
      const std::string printed = Print(*graph);
      const absl::StatusOr<Graph> again = ParseGraph(printed);
      ASSERT_TRUE(again.ok()) << again.status() << "\n" << printed;
      ASSERT_EQ(Print(*again), printed);
    }
    for (const char* sample : kSegments) {
      const std::string text = mutate(sample);
      const absl::StatusOr<SegmentIr> segment = ParseSegment(text);
      if (!segment.ok()) continue;
      ++parsed;
      const std::string printed = Print(*segment);
      const absl::StatusOr<SegmentIr> again = ParseSegment(printed);
      ASSERT_TRUE(again.ok()) << again.status() << "\n" << text << "\n" << printed;
      ASSERT_EQ(Print(*again), printed) << text;
    }
  }
  EXPECT_GT(parsed, 500u);
}

}  // namespace
}  // namespace frametap
