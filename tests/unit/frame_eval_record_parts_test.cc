// The parts of a recording alone: what was done since a mark leaves nothing behind when it is taken back (trace/C6).
#include <ATen/ops/add.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "frame_eval/record/numbers/number_records.h"
#include "frame_eval/record/trace/aten_recorder.h"
#include "frame_eval/record/trace/effects.h"
#include "frame_eval/record/trace/thread_changes.h"
#include "ir/text/text.h"
#include "tests/unit/guards_fixture.h"

namespace frametap {
namespace {

constexpr int kRounds = 200, kSteps = 30;

TEST(ThreadChanges, IsAfterRewindAsItWasAtTheMark) {
  std::mt19937 random(1);
  // Never read: a variable is known by its address.
  std::array<int, 4> addresses;
  const auto variable = [&](size_t i) { return reinterpret_cast<PyObject*>(&addresses[i]); };
  for (int round = 0; round < kRounds; ++round) {
    using Model = std::vector<std::pair<size_t, uint32_t>>;  // sets that were not reset, in their order
    ThreadChanges changes(EagerState(), 0);
    Model model, model_at_mark;
    ThreadChanges::Mark mark;
    uint32_t epoch = 0;
    const auto step = [&] {
      const size_t which = random() % addresses.size();
      if (random() % 2 == 0) {
        changes.SetContext(variable(which), ++epoch);
        model.emplace_back(which, epoch);
      } else {
        const auto last =
            std::find_if(model.rbegin(), model.rend(), [&](const auto& set) { return set.first == which; });
        const uint32_t token = last != model.rend() && random() % 4 != 0 ? last->second : random() % (epoch + 1);
        const bool fits = last != model.rend() && last->second == token;
        ASSERT_EQ(changes.ResetContext(variable(which), token), fits);
        if (fits) model.erase(std::next(last).base());
      }
      changes.autocast_nesting += static_cast<int>(random() % 3) - 1;
      changes.backends = static_cast<uint16_t>(random());
    };
    const auto expect_model = [&] {
      EXPECT_EQ(changes.IsContextSet(), !model.empty());
      for (size_t i = 0; i < addresses.size(); ++i) {
        const bool is_set = std::any_of(model.begin(), model.end(), [&](const auto& set) { return set.first == i; });
        EXPECT_EQ(changes.IsContextSet(variable(i)), is_set);
      }
    };
    for (int i = random() % kSteps; i > 0; --i) step();
    mark = changes.Now();
    model_at_mark = model;
    for (int i = random() % kSteps; i > 0; --i) step();
    changes.Rewind(mark);
    model = model_at_mark;
    expect_model();
    EXPECT_EQ(changes.autocast_nesting, mark.autocast_nesting);
    EXPECT_EQ(changes.backends, mark.backends);
    for (int i = 0; i < kSteps; ++i) step();  // continues as from the mark
    expect_model();
  }
}

TEST(Effects, IsAfterRewindAsItWasAtTheMark) {
  std::mt19937 random(2);
  for (int round = 0; round < kRounds; ++round) {
    Effects effects;
    std::vector<std::string> names;
    const auto add = [&] {
      PendingEffect effect;
      effect.name = std::to_string(random());
      names.push_back(effect.name);
      effects.pending.push_back(std::move(effect));
    };
    for (int i = random() % kSteps; i > 0; --i) add();
    const Effects::Mark mark = effects.Now();
    const std::vector<std::string> at_mark = names;
    for (int i = random() % kSteps; i > 0; --i) add();
    effects.Rewind(mark);
    ASSERT_EQ(effects.pending.size(), at_mark.size());
    for (size_t i = 0; i < at_mark.size(); ++i) EXPECT_EQ(effects.pending[i].name, at_mark[i]);
  }
}

// number_records/N1, against plain lists of the same facts.
TEST(NumberRecords, ForgetDropsWhatRestsOnWhatIsGone) {
  std::mt19937 random(3);
  for (int round = 0; round < kRounds; ++round) {
    NumberRecords records(OpenNumbers::kAll);
    const uint32_t values = random() % kSteps, sources = random() % kSteps;
    const auto any = [&] { return static_cast<uint32_t>(random() % kSteps); };
    const auto shadow = [&] {
      const auto kind = random() % 2 == 0 ? Shadow::Kind::kValue : Shadow::Kind::kSource;
      return Shadow{kind, any()};
    };
    const auto stays = [&](Shadow s) { return s.kind == Shadow::Kind::kValue ? s.id < values : s.id < sources; };
    const auto stays_key = [&](const std::pair<int, int64_t>& key) {
      return key.first == static_cast<int>(Shadow::Kind::kNone) ||
             stays({static_cast<Shadow::Kind>(key.first), static_cast<uint32_t>(key.second)});
    };
    for (int i = 0; i < kSteps; ++i) {
      records.inputs.emplace(any(), SourceId(any()));
      records.values.emplace(any(), ValueId(any()));
      records.results.emplace(any(), c10::IValue(static_cast<int64_t>(i)));
      records.not_negative.insert(ValueId(any()));
      records.traced_sizes.emplace(std::pair(any(), int64_t{i}), shadow());
      records.ruled_sizes.try_emplace(any());
      const IntTerm a = random() % 3 == 0 ? IntTerm::Of(int64_t{i}) : IntTerm::Of(shadow());
      records.int_ops.emplace(std::tuple(BuiltinOp::kIntAdd, a.Key(), IntTerm::Of(shadow()).Key()), shadow());
      records.sizes_read.insert(ValueId(any()));
      records.strides_read.insert(ValueId(any()));
    }
    const auto kept = [](const auto& table, const auto& stays) {
      return std::count_if(table.begin(), table.end(), stays);
    };
    const auto by_value = [&](const auto& one) { return one.first < values; };
    const auto size_stays = [&](const auto& one) { return one.first.first < values && stays(one.second); };
    const auto op_stays = [&](const auto& one) {
      return stays(one.second) && stays_key(std::get<1>(one.first)) && stays_key(std::get<2>(one.first));
    };
    const auto value_stays = [&](const auto& one) { return one.first < sources && one.second.raw() < values; };
    const auto inputs = kept(records.inputs, by_value), results = kept(records.results, by_value);
    const auto ruled = kept(records.ruled_sizes, by_value), traced = kept(records.traced_sizes, size_stays);
    const auto ops = kept(records.int_ops, op_stays), numbers = kept(records.values, value_stays);
    const auto naturals = kept(records.not_negative, [&](ValueId value) { return value.raw() < values; });
    records.Forget(sources, values);
    const auto is_all = [&](const auto& table, const auto& stays, auto count) {
      return std::all_of(table.begin(), table.end(), stays) && std::ssize(table) == count;
    };
    EXPECT_TRUE(is_all(records.inputs, by_value, inputs));
    EXPECT_TRUE(is_all(records.results, by_value, results));
    EXPECT_TRUE(is_all(records.ruled_sizes, by_value, ruled));
    EXPECT_TRUE(is_all(records.traced_sizes, size_stays, traced));
    EXPECT_TRUE(is_all(records.int_ops, op_stays, ops));
    EXPECT_TRUE(is_all(records.values, value_stays, numbers));
    EXPECT_EQ(std::ssize(records.not_negative), naturals);
    EXPECT_TRUE(records.sizes_read.empty() && records.strides_read.empty());
  }
}

// Returns the graph of `record` for two tensors, without values that nothing makes.
static std::string Recorded(absl::FunctionRef<void(AtenRecorder&, const at::Tensor&, const at::Tensor&)> record) {
  AtenRecorder recorder;
  recorder.place = [] { return kNowhere; };
  const at::Tensor a = at::ones({2, 3}), b = at::ones({2, 3});
  recorder.AddSource(a, SourceId(0));
  recorder.AddSource(b, SourceId(1));
  recorder.Start();
  record(recorder, a, b);
  recorder.Stop();
  EXPECT_EQ(recorder.places().size(), recorder.graph().nodes.size());
  Graph graph = std::move(recorder.graph());
  const std::vector<bool> used(graph.values.size(), true), kept(graph.nodes.size(), true);
  std::vector<ValueId> now;
  return Print(PartOf(std::move(graph), used, kept, &now));
}

TEST(AtenRecorder, DropsNodesThatTheLastOneDoesNotUse) {
  ASSERT_STREQ(InstallFallback(), "");
  const std::string with_less = Recorded([](AtenRecorder& recorder, const at::Tensor& a, const at::Tensor& b) {
    const at::Tensor sum = at::add(a, b);
    const at::Tensor product = at::mul(a, at::relu(at::neg(sum)));
    recorder.graph().nodes.back().args[1] = Arg::Of(*recorder.tensors.ValueOf(sum));
    recorder.DropBeforeLast(NodeId(1));
    at::add(product, a);
  });
  const std::string plain = Recorded([](AtenRecorder&, const at::Tensor& a, const at::Tensor& b) {
    const at::Tensor product = at::mul(a, at::add(a, b));
    at::add(product, a);
  });
  EXPECT_EQ(with_less, plain);
}

TEST(RewoundGraph, IsAfterRewindAsItWasAtTheMark) {
  ASSERT_STREQ(InstallFallback(), "");
  std::mt19937 random(4);
  size_t kept = 0, dropped = 0;  // nodes
  for (int round = 0; round < 40; ++round) {
    AtenRecorder recorder;
    recorder.place = [] { return kNowhere; };
    std::vector<at::Tensor> tensors;
    for (uint32_t i = 0; i < 3; ++i) {
      tensors.push_back(at::ones({2, 3}));
      recorder.AddSource(tensors.back(), SourceId(i));
    }
    recorder.Start();
    const auto step = [&] {
      at::Tensor& a = tensors[random() % tensors.size()];
      at::Tensor& b = tensors[random() % tensors.size()];
      switch (random() % 4) {
        case 0:
          tensors.push_back(at::add(a, b));
          break;
        case 1:
          tensors.push_back(at::relu(a));
          break;
        case 2:
          a.mul_(2);
          break;  // the tensor has another value from here on
        default:
          tensors.push_back(a.t().t());
          break;
      }
    };
    for (int i = random() % kSteps; i > 0; --i) step();
    const AtenRecorder::Mark mark = recorder.mark();
    const std::string at_mark = Print(recorder.graph());
    std::vector<std::pair<at::Tensor, uint32_t>> known;
    for (const at::Tensor& tensor : tensors) {
      const KnownTensor* of = recorder.tensors.Find(tensor);
      if (of != nullptr && of->value.valid()) known.emplace_back(tensor, of->value.raw());
    }
    for (int i = random() % kSteps; i > 0; --i) step();
    recorder.Stop();
    kept += mark.nodes;
    dropped += recorder.graph().nodes.size() - mark.nodes;
    recorder.Rewind(mark);
    EXPECT_EQ(Print(recorder.graph()), at_mark);
    EXPECT_EQ(recorder.places().size(), recorder.graph().nodes.size());
    for (const auto& [tensor, value] : known) {
      const KnownTensor* of = recorder.tensors.Find(tensor);
      ASSERT_NE(of, nullptr);
      EXPECT_EQ(of->value.raw(), value);
    }
  }
  EXPECT_GT(kept, 100u);
  EXPECT_GT(dropped, 100u);
}

class RewoundGuards : public GuardsTest {};

TEST_F(RewoundGuards, AreAfterRewindAsTheyWereAtTheMark) {
  Exec(R"(
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.scale, self.items = nn.Linear(3, 3), 1.5, [1, 2.0]
a, b, c = Layer(), Layer(), Layer()
)");
  std::mt19937 random(5);
  for (int round = 0; round < kRounds; ++round) {
    GuardRecorder r(WorldState::Now());
    const SourceId roots[] = {Arg(r, "a"), Arg(r, "b"), Arg(r, "c")};
    const auto step = [&] {
      const SourceId root = roots[random() % 3];
      switch (random() % 7) {
        case 0:
          r.Type(root, GuardSite());
          break;
        case 1:
          r.Add(GuardKind::kNoHooks, root, GuardSite());
          break;
        case 2:
          r.Tensor(ModuleAttr(r, ModuleAttr(r, root, "linear"), "weight"), TensorRead(), GuardSite());
          break;
        case 3:
          r.Value(Attr(r, root, "scale"), GuardSite());
          break;
        case 4:
          r.Length(Attr(r, root, "items"), GuardSite());
          break;
        case 5:
          r.Value(ItemOf(r, Attr(r, root, "items"), 1), GuardSite());
          break;
        default:
          r.NoInstanceAttr(root, Str("tag").get(), GuardSite());
          break;
      }
    };
    // The counts of sources and predicates, and the kind of guard on each root.
    const auto state = [&] {
      std::vector<size_t> all = {r.mark().sources, r.mark().predicates};
      for (const SourceId root : roots) all.push_back(static_cast<size_t>(r.SaidOf(root)));
      return all;
    };
    for (int i = random() % kSteps; i > 0; --i) step();
    const GuardRecorder::Mark mark = r.mark();
    const auto at_mark = state();
    const std::vector<StateFact> facts_at_mark = r.StateFacts();
    const auto said_at_mark = r.SaidSince({0, 0});
    for (int i = random() % kSteps; i > 0; --i) step();
    r.Rewind(mark);
    EXPECT_EQ(state(), at_mark);
    EXPECT_EQ(r.SaidSince({0, 0}), said_at_mark);
    EXPECT_EQ(r.StateFacts(), facts_at_mark);
  }
}

}  // namespace
}  // namespace frametap
