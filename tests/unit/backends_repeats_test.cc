// plan/P7: a node that repeats an earlier one is not run, and the results are the same.
// Laws: backend/B1, plan/P6, plan/P7
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/core/GradMode.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "backends/backend.h"
#include "ir/text/text.h"

namespace frametap {
namespace {

using Values = std::vector<c10::IValue>;

std::unique_ptr<Executable> Compile(std::unique_ptr<Backend> backend, const std::string& text) {
  absl::StatusOr<Graph> graph = ParseGraph(text);
  EXPECT_TRUE(graph.ok()) << graph.status() << text;
  absl::StatusOr<std::unique_ptr<Executable>> executable = backend->Compile(*graph);
  EXPECT_TRUE(executable.ok()) << executable.status() << text;
  return std::move(*executable);
}

// The allocations of this thread for tensors.
struct Allocations : c10::MemoryReportingInfoBase {
  int count = 0;
  int64_t now = 0, most = 0;
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
    count += size > 0;
    now += size;
    most = std::max(most, now);
  }
  bool memoryProfilingEnabled() const override { return true; }
};

Allocations AllocationsOf(Executable& executable, const Values& inputs) {
  const auto counter = std::make_shared<Allocations>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, counter);
  executable.Run(inputs);
  return *counter;
}

std::atomic<int> ops_seen{0};

// Somebody who looks on.
class Onlooker {
 public:
  Onlooker() {
    ops_seen = 0;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
          ++ops_seen;
          return nullptr;
        }).scopes({at::RecordScope::FUNCTION}));
  }
  ~Onlooker() { at::removeCallback(handle_); }
  Onlooker(const Onlooker&) = delete;
  Onlooker& operator=(const Onlooker&) = delete;

 private:
  at::CallbackHandle handle_;
};

constexpr const char* kThrice =
    " %a = aten.exp(%x)\n %b = aten.exp(%x)\n %c = aten.exp(%x)\n %z = aten.addcmul(%a, %b, %c)\n return %z\n";

TEST(Repeats, P7_AreNotRunWhereNobodyLooksOn) {
  const auto count = [](const std::string& state, const at::Tensor& x) {
    return AllocationsOf(*Compile(MakeNativeBackend(), "graph (%x) under " + state + " {\n" + kThrice + "}\n"), {x})
        .count;
  };
  const at::Tensor x = at::randn({4});
  EXPECT_EQ(count("{grad_mode(off)}", x), 2);
  EXPECT_EQ(count("{grad_mode(on)}", x), 4);
  EXPECT_EQ(count("{grad_mode(off), autocast(bf16)}", x), 4);
  EXPECT_EQ(count("{grad_mode(off)}", at::randn({4}, at::kComplexFloat)), 2);
  const at::Tensor conjugate = at::randn({4}, at::kComplexFloat).conj();
  EXPECT_EQ(count("{grad_mode(off)}", conjugate), count("{grad_mode(on)}", conjugate));
}

TEST(Repeats, P7_AreRunWhereSomebodyDoes) {
  const auto seen = [](std::unique_ptr<Backend> backend) {
    const auto executable =
        Compile(std::move(backend), std::string("graph (%x) under {grad_mode(off)} {\n") + kThrice + "}\n");
    const Onlooker onlooker;
    executable->Run({at::randn({4})});
    return ops_seen.load();
  };
  EXPECT_EQ(seen(MakeNativeBackend()), seen(MakeReferenceBackend()));
}

TEST(Repeats, P7_NumbersInAnyRun) {
  const std::string text =
      "graph (%x, %n : int) {\n %a : int = int.add(%n, 1)\n %b : int = int.add(%n, 1)\n"
      " %y = aten.add.Tensor(%x, %x, alpha=%a)\n %z = aten.add.Tensor(%y, %x, alpha=%b)\n return %a, %z, %b\n}\n";
  const at::Tensor x = at::randn({4}).requires_grad_();
  const Values out = Compile(MakeNativeBackend(), text)->Run({x, 2});
  EXPECT_EQ(out[0].toInt(), 3);
  EXPECT_EQ(out[2].toInt(), 3);
  EXPECT_TRUE(at::equal(out[1].toTensor(), Compile(MakeReferenceBackend(), text)->Run({x, 2})[1].toTensor()));
}

TEST(Repeats, P6_WhatIsSharedIsNotWrittenOver) {
  // %n is the last use of %a, and of %b; %m multiplies one tensor with itself.
  const std::string text =
      "graph (%x) under {grad_mode(off)} {\n %a = aten.exp(%x)\n %n = aten.neg(%a)\n %b = aten.exp(%x)\n"
      " %c = aten.sin(%b)\n %d = aten.exp(%x)\n %e = aten.exp(%x)\n %m = aten.mul.Tensor(%d, %e)\n"
      " return %n, %c, %m\n}\n";
  const at::Tensor x = at::randn({64});
  const Values got = Compile(MakeNativeBackend(), text)->Run({x}),
               want = Compile(MakeReferenceBackend(), text)->Run({x});
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(at::equal(got[i].toTensor(), want[i].toTensor())) << i;
}

// Graphs of a few ops on few values, so that much is repeated, with views and writes.
class Graphs {
 public:
  explicit Graphs(uint64_t seed) : random_(seed) {}

  std::string Text() {
    std::string text = "graph (%x, %y, %n : int) under {grad_mode(off)} {\n";
    std::vector<std::string> tensors = {"%x", "%y"}, numbers = {"%n"};
    const size_t nodes = 4 + Chance(14);
    for (size_t i = 0; i < nodes; ++i) {
      const std::string name = absl::StrCat("%", i), a = OneOf(tensors), b = OneOf(tensors);
      const size_t kind = Chance(24);
      absl::StrAppend(&text, " ", name);
      if (kind == 0) {
        absl::StrAppend(&text, " = aten.t(", a, ")");
      } else if (kind == 1) {
        absl::StrAppend(&text, " = aten.add_.Tensor(", a, ", ", b, ")");
      } else if (kind == 2) {
        absl::StrAppend(&text, " = aten.dropout(", a, ", 0.5, False)");
      } else if (kind == 3) {
        absl::StrAppend(&text, " = aten.sin(", a, ")  {grad_mode(on)}");
      } else if (kind < 6) {
        absl::StrAppend(&text, " : int = int.add(", OneOf(numbers), ", ", Chance(2), ")");
        numbers.push_back(name);
        absl::StrAppend(&text, "\n");
        continue;
      } else if (kind < 9) {
        absl::StrAppend(&text, " = aten.mul.Tensor(", a, ", ", OneOf({"1", "1.0", "2", "-0.0"}), ")");
      } else if (kind < 11) {
        absl::StrAppend(&text, " = aten.sub.Tensor(", a, ", ", b, ", alpha=", OneOf(numbers), ")");
      } else if (kind < 13) {
        absl::StrAppend(&text, " = aten.maximum(", a, ", ", b, ")");
      } else {
        absl::StrAppend(&text, " = aten.", OneOf({"sin", "relu", "neg", "clone"}), "(", a, ")");
      }
      absl::StrAppend(&text, "\n");
      tensors.push_back(name);
      if (Chance(3) == 0) tensors.erase(tensors.begin() + static_cast<ptrdiff_t>(Chance(tensors.size())));
    }
    absl::StrAppend(&text, " return ", OneOf(tensors), ", ", OneOf(tensors), ", ", tensors.back(), ", ",
                    OneOf(numbers));
    return text + "\n}\n";
  }

 private:
  size_t Chance(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }
  std::string OneOf(const std::vector<std::string>& among) { return among[Chance(among.size())]; }

  std::mt19937_64 random_;
};

TEST(Repeats, B1_RandomGraphsGiveWhatTheReferenceGives) {
  int fewer = 0;
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    const std::string text = Graphs(seed).Text();
    const auto native = Compile(MakeNativeBackend(), text), reference = Compile(MakeReferenceBackend(), text);
    const at::Tensor x = at::randn({4, 4}), y = seed % 3 == 0 ? x : at::randn({4, 4});
    const auto inputs = [&](at::Tensor* first) {
      *first = x.clone();
      return Values{*first, y.is_same(x) ? *first : y.clone(), static_cast<int64_t>(seed % 2)};
    };
    at::Tensor x1, x2;
    Values want;
    try {
      want = reference->Run(inputs(&x2));
    } catch (const c10::Error&) {  // a write to a part of the memory that is read
      EXPECT_THROW(native->Run(inputs(&x1)), c10::Error) << seed << text;
      continue;
    }
    const Values got = native->Run(inputs(&x1));
    ASSERT_TRUE(at::equal(x1, x2)) << seed << text;
    ASSERT_EQ(got[3].toInt(), want[3].toInt()) << seed << text;
    for (size_t write = 0; write < 4; ++write) {  // first none, then to each result
      if (write > 0) {
        got[write - 1].toTensor().add_(1);
        want[write - 1].toTensor().add_(1);
      }
      for (size_t i = 0; i < 3; ++i) {
        const at::Tensor &a = got[i].toTensor(), &b = want[i].toTensor();
        ASSERT_TRUE(at::equal(a, b)) << seed << text << i << " after a write to " << write;
        ASSERT_EQ(a.strides(), b.strides()) << seed << text;
        ASSERT_EQ(a.storage_offset(), b.storage_offset()) << seed << text;
        ASSERT_EQ(a._version(), b._version()) << seed << text;
        for (size_t j = 0; j < 3; ++j) {
          ASSERT_EQ(a.is_same(got[j].toTensor()), b.is_same(want[j].toTensor())) << seed << text;
          ASSERT_EQ(a.is_alias_of(got[j].toTensor()), b.is_alias_of(want[j].toTensor())) << seed << text;
        }
      }
    }
    at::Tensor again;
    const Allocations shared = AllocationsOf(*native, inputs(&again));
    const Onlooker onlooker;
    const Allocations written = AllocationsOf(*native, inputs(&again));
    ASSERT_LE(shared.most, written.most) << seed << text;  // repeats/S3
    fewer += shared.count < written.count;
  }
  EXPECT_GT(fewer, 1000);
}

}  // namespace
}  // namespace frametap
