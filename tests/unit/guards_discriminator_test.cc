// Discriminators: the fact by which trees differ is found, and a tree that fits has the key of the call.
#include "guards/check/discriminator.h"

#include <functional>

#include "tests/unit/guards_fixture.h"

namespace frametap {
namespace {

const GuardSite kHere;

class DiscriminatorTest : public GuardsTest {
 protected:
  // One tree for each code, which sets the arguments that `guard` reads.
  void Plant(const std::vector<std::string>& codes, const std::function<void(GuardRecorder&)>& guard) {
    codes_ = codes;
    trees_.clear();
    for (const std::string& code : codes) {
      Exec(code);
      GuardRecorder recorder(WorldState::Now());
      guard(recorder);
      trees_.push_back(PlantTree(recorder.Freeze({})));
    }
  }
  std::optional<Discriminator> Find() {
    std::vector<const GuardTree*> trees;
    for (const auto& tree : trees_) trees.push_back(tree.get());
    return Discriminator::Of(trees);
  }
  // discriminator/D1, and that it leaves one tree for each code.
  void TellsAllApart() {
    const std::optional<Discriminator> by = Find();
    ASSERT_TRUE(by);
    for (size_t i = 0; i < codes_.size(); ++i) {
      Exec(codes_[i]);
      const uint64_t key = by->KeyAt(Now());
      for (size_t j = 0; j < trees_.size(); ++j) {
        EXPECT_EQ(by->KeyOf(*trees_[j]) == key, i == j) << codes_[i] << ", " << codes_[j];
        EXPECT_EQ(Hits(*trees_[j]), i == j) << codes_[i] << ", " << codes_[j];
      }
    }
  }

  std::vector<std::string> codes_;
  std::vector<std::unique_ptr<GuardTree>> trees_;
};

TEST_F(DiscriminatorTest, Values) {
  Plant({"a = 1", "a = True", "a = 1.0", "a = '1'", "a = -1.0", "a = None", "a = 2", "a = 'two'"},
        [&](GuardRecorder& r) { r.Value(Arg(r, "a"), kHere); });
  TellsAllApart();
}

TEST_F(DiscriminatorTest, LengthsTypesAndCode) {
  Plant({"a = []", "a = [0]", "a = [0, 0]"}, [&](GuardRecorder& r) { r.Length(Arg(r, "a"), kHere); });
  TellsAllApart();
  Plant({"a = ()", "a = {}", "a = nn.ReLU()", "a = nn.Tanh()"}, [&](GuardRecorder& r) { r.Type(Arg(r, "a"), kHere); });
  TellsAllApart();
  Plant({"a = lambda x: x", "a = lambda x: -x", "def a(x): return x"},
        [&](GuardRecorder& r) { r.Add(GuardKind::kCode, Arg(r, "a"), kHere); });
  EXPECT_TRUE(Find());
}

TEST_F(DiscriminatorTest, Tensors) {
  Plant({"a = torch.ones(2)", "a = torch.ones(2, 1)", "a = torch.ones(2, dtype=torch.int)",
         "a = torch.ones(2, requires_grad=True)"},
        [&](GuardRecorder& r) { r.Tensor(Arg(r, "a"), TensorRead(), kHere); });
  TellsAllApart();
  TensorRead sizes;
  sizes.sizes = true;
  Plant({"a = torch.ones(2)", "a = torch.ones(3)", "a = torch.ones(1, 3)"},
        [&](GuardRecorder& r) { r.Tensor(Arg(r, "a"), sizes, kHere); });
  TellsAllApart();
}

TEST_F(DiscriminatorTest, TheOneOfSeveralFactsThatTellsMostApart) {
  Plant({"a = 'x'; m = nn.Module(); m.n = 1", "a = 'x'; m = nn.Module(); m.n = 2", "a = 'y'; m = nn.Module(); m.n = 3"},
        [&](GuardRecorder& r) {
          r.Value(Arg(r, "a"), kHere);
          const SourceId m = Arg(r, "m");
          r.Type(m, kHere);
          r.Value(Attr(r, m, "n"), kHere);
        });
  TellsAllApart();
}

TEST_F(DiscriminatorTest, NoneWhereNothingDiffersOrIsCommon) {
  Plant({"a = 1; b = 2"}, [&](GuardRecorder& r) { r.Value(Arg(r, "a"), kHere); });
  EXPECT_FALSE(Find());
  Plant({"a = 1; b = 2", "a = 1; b = 3"}, [&](GuardRecorder& r) { r.Value(Arg(r, "a"), kHere); });
  EXPECT_FALSE(Find());
  bool first = true;
  Plant({"a = 1; b = 2", "a = 1; b = 3"}, [&](GuardRecorder& r) {
    r.Value(Arg(r, first ? "a" : "b"), kHere);
    first = false;
  });
  EXPECT_FALSE(Find());
}

TEST_F(DiscriminatorTest, APathThatIsNotThereIsAnotherKey) {
  Plant({"m = nn.Module(); m.n = 1", "m = nn.Module(); m.n = 2"},
        [&](GuardRecorder& r) { r.Value(Attr(r, Arg(r, "m"), "n"), kHere); });
  const std::optional<Discriminator> by = Find();
  ASSERT_TRUE(by);
  Exec("m = 3");
  const uint64_t key = by->KeyAt(Now());
  EXPECT_NE(by->KeyOf(*trees_[0]), key);
  EXPECT_NE(by->KeyOf(*trees_[1]), key);
}

}  // namespace
}  // namespace frametap
