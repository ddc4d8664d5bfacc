// in_place/I1: wherever MayOverwrite says yes, the in-place form gives what the op gives, to the bit.
// Laws: in_place/I1
#include "ir/ops/in_place.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "ir/ops/below_autograd.h"

namespace frametap {
namespace {

c10::OperatorHandle Find(const std::string& name) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(name, absl::MaxSplits('.', 1));
  return c10::Dispatcher::singleton().findSchemaOrThrow(parts.first.c_str(), parts.second.c_str());
}

class Inputs {
 public:
  explicit Inputs(uint64_t seed) : random_(seed) {}

  size_t Chance(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }

  std::vector<int64_t> Sizes() {
    std::vector<int64_t> sizes(Chance(5));
    for (int64_t& size : sizes) size = std::vector<int64_t>{0, 1, 1, 2, 3, 5, 17, 40}[Chance(8)];
    return sizes;
  }

  at::Tensor Floats(const std::vector<int64_t>& sizes, at::ScalarType dtype) {
    at::Tensor out = at::randn(sizes, at::kDouble) * 3;
    const double special[] = {0.0, -0.0, NAN, INFINITY, -INFINITY, 1e-310, 1.0};
    if (out.numel() > 0) {
      for (const double value : special) out.view(-1)[static_cast<int64_t>(Chance(out.numel()))] = value;
    }
    out = out.to(dtype);
    switch (Chance(5)) {  // other strides
      case 0:
        return out.dim() > 1 ? out.transpose(0, 1).contiguous().transpose(0, 1) : out;
      case 1:
        return out.dim() == 4 ? out.contiguous(at::MemoryFormat::ChannelsLast) : out;
      case 2:
        return out.dim() > 0 ? at::cat({out, out}, 0).narrow(0, 0, out.size(0)) : out;
      default:
        return out;
    }
  }

 private:
  std::mt19937_64 random_;
};

// Arguments after the first, for floats, as in calls with the defaults of the schema.
torch::jit::Stack Rest(const c10::FunctionSchema& schema, Inputs* inputs, const std::vector<int64_t>& sizes,
                       at::ScalarType dtype) {
  torch::jit::Stack rest;
  for (size_t i = 1; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (argument.type()->kind() == c10::TypeKind::TensorType) {
      std::vector<int64_t> other = sizes;
      for (int64_t& size : other) size = inputs->Chance(3) == 0 ? 1 : size;
      other.erase(other.begin(), other.begin() + static_cast<ptrdiff_t>(inputs->Chance(other.size() + 1)));
      if (inputs->Chance(3) == 0) other = sizes;
      at::Tensor tensor = inputs->Floats(other, inputs->Chance(6) == 0 ? at::kDouble : dtype);
      if (inputs->Chance(4) == 0) {
        tensor = at::scalar_tensor(1.5, at::kDouble);
        tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
      }
      rest.emplace_back(std::move(tensor));
    } else if (argument.default_value() && inputs->Chance(2) == 0) {
      rest.push_back(*argument.default_value());
    } else if (argument.name() == "approximate") {
      rest.emplace_back("tanh");
    } else {
      rest.emplace_back(at::Scalar(inputs->Chance(2) == 0 ? 0.5 : 2.0));
    }
  }
  return rest;
}

TEST(InPlace, EveryOpHasAForm) {
  for (const std::string& name : OpsWithInPlaceForm()) EXPECT_TRUE(InPlaceForm(Find(name)).has_value()) << name;
  EXPECT_FALSE(InPlaceForm(Find("aten::add.Scalar")));
  EXPECT_FALSE(InPlaceForm(Find("aten::cumsum")));
}

TEST(InPlace, GivesTheSameBits) {
  const c10::AutoGradMode no_grad(false);
  const at::AutoDispatchBelowADInplaceOrView below;
  at::manual_seed(1);
  for (const std::string& name : OpsWithInPlaceForm()) {
    const c10::OperatorHandle op = Find(name);
    const c10::OperatorHandle form = *InPlaceForm(op);
    ASSERT_EQ(Judge(op).below, BelowAutograd::kSame) << name;
    int overwritten = 0;
    for (uint64_t seed = 0; seed < 600; ++seed) {
      Inputs inputs(seed);
      const at::ScalarType dtype = std::vector<at::ScalarType>{at::kFloat,    at::kFloat, at::kDouble,
                                                               at::kBFloat16, at::kHalf,  at::kLong}[inputs.Chance(6)];
      const std::vector<int64_t> sizes = inputs.Sizes();
      at::Tensor x = inputs.Floats(sizes, dtype);
      c10::VariableVersion version = x.unsafeGetTensorImpl()->version_counter();  // shared, not copied
      version.set_version(inputs.Chance(4) == 0 ? 1 : 0);
      const torch::jit::Stack rest = Rest(op.schema(), &inputs, sizes, dtype);
      torch::jit::Stack stack{x};
      stack.insert(stack.end(), rest.begin(), rest.end());
      torch::jit::Stack want = stack;
      want[0] = x.clone(at::MemoryFormat::Preserve);
      EXPECT_FALSE(MayOverwrite(stack)) << "somebody else holds it";
      x.reset();
      if (!MayOverwrite(stack)) continue;
      try {
        op.callBoxed(want);
      } catch (const c10::Error&) {  // clamp without bounds
        continue;
      }
      ++overwritten;
      form.callBoxed(stack);
      const at::Tensor &a = want[0].toTensor(), &b = stack[0].toTensor();
      ASSERT_EQ(a.scalar_type(), b.scalar_type()) << name << " " << seed;
      ASSERT_EQ(a.sizes(), b.sizes()) << name << " " << seed;
      ASSERT_EQ(b.unsafeGetTensorImpl()->version_counter().current_version(), 0) << name << " " << seed;
      ASSERT_EQ(a.strides(), b.strides()) << name << " " << seed;
      ASSERT_EQ(a.storage_offset(), b.storage_offset()) << name << " " << seed;
      ASSERT_EQ(a.storage().nbytes(), b.storage().nbytes()) << name << " " << seed;
      ASSERT_EQ(a._version(), b._version()) << name << " " << seed;
      ASSERT_EQ(std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()), 0) << name << " " << seed;
    }
    EXPECT_GT(overwritten, 50) << name;
  }
}

TEST(InPlace, I1_NotOverWhatHasBeenWrittenTo) {
  const c10::AutoGradMode no_grad(false);
  torch::jit::Stack stack{at::randn({4}).clone()};
  ASSERT_TRUE(MayOverwrite(stack));
  stack[0].toTensor().add_(1);
  EXPECT_FALSE(MayOverwrite(stack)) << "the result would have its version";
}

}  // namespace
}  // namespace frametap
