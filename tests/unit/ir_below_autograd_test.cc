// Laws: below_autograd/A1
#include "ir/ops/below_autograd.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"

namespace frametap {
namespace {

using c10::DispatchKey;

constexpr const char* kGenerated = "torch/csrc/autograd/generated/";

c10::OperatorHandle Find(const char* name, const char* overload) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
}

at::Tensor Foreign(const at::Tensor& x) { return x; }

// A kernel of another library, until the end of the scope. It is described in the words of torch.
c10::RegistrationHandleRAII RegisterForeign(const c10::OperatorHandle& op, DispatchKey key, const char* words) {
  return c10::Dispatcher::singleton().registerImpl(op.operator_name(), key,
                                                   c10::KernelFunction::makeFromUnboxedRuntimeFunction(&Foreign),
                                                   std::nullopt, nullptr, words);
}

TEST(BelowAutograd, A1_TheKernelsOfTorchAreThoseThatTorchNames) {
  const std::vector<std::string> left_out = {"aten::mish_backward", "aten::native_channel_shuffle",
                                             "aten::silu_backward"};
  size_t same = 0;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || name.getNamespace() != "aten" || !op->hasComputedKernelForDispatchKey(DispatchKey::AutogradCPU))
      continue;
    if (HasAliases(op->schema()) || op->hasKernelForDispatchKey(DispatchKey::ADInplaceOrView)) continue;
    const std::string words = op->getComputedKernelForDispatchKey(DispatchKey::AutogradCPU).debug();
    const bool is_left_out = std::find(left_out.begin(), left_out.end(), name.name) != left_out.end();
    const bool is_same = Judge(*op).below == BelowAutograd::kSame;
    EXPECT_EQ(is_same, absl::StrContains(words, kGenerated) && !is_left_out) << name << ": " << words;
    same += is_same ? 1 : 0;
  }
  EXPECT_GT(same, 500U);
}

TEST(BelowAutograd, A1_AnotherKernelOfAutogradIsNotedWhateverItSays) {
  const c10::OperatorHandle relu = Find("aten::relu", "");
  ASSERT_EQ(Judge(relu).below, BelowAutograd::kSame);
  for (const DispatchKey key : {DispatchKey::AutogradCPU, DispatchKey::Autograd}) {
    const auto registered =
        RegisterForeign(relu, key, "registered at torch/csrc/autograd/generated/VariableType_0.cpp");
    EXPECT_EQ(Judge(relu).below, BelowAutograd::kDiffers) << key;
  }
  EXPECT_EQ(Judge(relu).below, BelowAutograd::kSame);
}

TEST(BelowAutograd, A1_AnotherKernelOfTheProcessorIsNotedWhateverItSays) {
  const c10::OperatorHandle relu = Find("aten::relu", "");
  ASSERT_TRUE(HasTorchsKernelOnCpu(relu));
  {
    const auto registered = RegisterForeign(relu, DispatchKey::CPU, "registered at aten/src/ATen/RegisterCPU_0.cpp");
    EXPECT_FALSE(HasTorchsKernelOnCpu(relu));
  }
  EXPECT_TRUE(HasTorchsKernelOnCpu(relu));
}

}  // namespace
}  // namespace frametap
