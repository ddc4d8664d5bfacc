// The laws of plain_function.h, for each op of the list with arguments made for its schema.
// Laws: plain_function/O1, plain_function/O2
#include "ir/ops/plain_function.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "ir/ops/op_facts.h"

namespace frametap {
namespace {

using Stack = torch::jit::Stack;

enum class Elements : uint8_t { kFloats, kInts, kFlags };

at::Tensor Some(Elements elements) {
  switch (elements) {
    case Elements::kFloats:
      return at::randn({3, 4, 4}).abs();
    case Elements::kInts:
      return at::arange(48).remainder(3).view({3, 4, 4});
    case Elements::kFlags:
      return at::arange(48).remainder(2).to(at::kBool).view({3, 4, 4});
  }
  return {};
}

// An argument of this type, or nothing.
std::optional<c10::IValue> Made(const c10::Type& type, Elements elements) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      return Some(elements);
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return c10::IValue(1);
    case c10::TypeKind::NumberType:
    case c10::TypeKind::FloatType:
      return elements == Elements::kFloats ? c10::IValue(2.0) : c10::IValue(2);
    case c10::TypeKind::BoolType:
      return c10::IValue(false);
    case c10::TypeKind::OptionalType:
      return c10::IValue();
    case c10::TypeKind::ListType:
      switch (type.castRaw<c10::ListType>()->getElementType()->kind()) {
        case c10::TypeKind::TensorType:
          return c10::IValue(std::vector<at::Tensor>{Some(elements), Some(elements)});
        case c10::TypeKind::IntType:
        case c10::TypeKind::SymIntType:
          return c10::IValue(std::vector<int64_t>{1, 2, 2});
        default:
          return std::nullopt;
      }
    default:
      return std::nullopt;
  }
}

std::optional<Stack> Arguments(const c10::FunctionSchema& schema, Elements elements) {
  Stack stack;
  for (const c10::Argument& argument : schema.arguments()) {
    std::optional<c10::IValue> made =
        argument.default_value() ? argument.default_value() : Made(*argument.type(), elements);
    if (!made) return std::nullopt;
    const std::string& name = argument.name();
    if (name == "index" || name == "indices") made = at::zeros({3, 4, 4}, at::kLong);
    if (name == "mask" || name == "condition") made = Some(Elements::kFlags);
    if (name == "shape" || name == "normalized_shape") made = std::vector<int64_t>{4};
    if (name == "min" && made->isNone()) made = c10::IValue(1);
    if (name == "dim" && made->isIntList()) made = std::vector<int64_t>{1};
    if (name == "dims") made = std::vector<int64_t>{0};
    stack.push_back(std::move(*made));
  }
  const std::string& op = schema.name();
  const auto tensor = [&](size_t i, at::Tensor t) { stack[i] = std::move(t); };
  if (op == "aten::mm" || op == "aten::linear") tensor(0, at::randn({4, 4})), tensor(1, at::randn({4, 4}));
  if (op == "aten::addmm") tensor(0, at::randn({4})), tensor(1, at::randn({4, 4})), tensor(2, at::randn({4, 4}));
  if (op == "aten::embedding") tensor(0, at::randn({4, 4}));
  if (op == "aten::index_select") tensor(2, at::zeros({2}, at::kLong));
  if (absl::StartsWith(op, "aten::conv")) {
    const std::vector<int64_t> sizes(static_cast<size_t>(op[op.size() - 2] - '0') + 2, 4);
    tensor(0, at::randn(sizes));
    tensor(1, at::randn(sizes));
  }
  return stack;
}

void ExpectSameBits(const c10::IValue& a, const c10::IValue& b, const std::string& op) {
  const at::Tensor &x = a.toTensor(), &y = b.toTensor();
  EXPECT_EQ(x.scalar_type(), y.scalar_type()) << op;
  ASSERT_EQ(x.sizes(), y.sizes()) << op;
  EXPECT_EQ(x.strides(), y.strides()) << op;
  if (x.is_non_overlapping_and_dense()) {
    EXPECT_EQ(std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()), 0) << op;
  }
}

// Calls the op with copies of the arguments, with these, and where two operands are alike with one for both.
void Check(const c10::OperatorHandle& op, const Stack& arguments, const std::string& name) {
  Stack own;
  for (const c10::IValue& argument : arguments) own.push_back(argument.deepcopy());
  Stack first = own, second = own;
  op.callBoxed(first);
  op.callBoxed(second);
  for (size_t i = 0; i < first.size(); ++i) {
    if (!first[i].isTensor()) continue;
    ExpectSameBits(first[i], second[i], name);
    EXPECT_EQ(first[i].use_count(), 1u) << name;
    EXPECT_EQ(first[i].toTensor().storage().use_count(), 1u) << name << " " << i;
    EXPECT_EQ(first[i].toTensor()._version(), 0) << name;
  }
  for (size_t i = 0; i < own.size(); ++i) {
    if (!own[i].isTensor() || !own[i].toTensor().defined()) continue;
    EXPECT_EQ(own[i].use_count(), 1u) << name << " keeps an operand";
    EXPECT_EQ(own[i].toTensor().storage().use_count(), 1u) << name;
    EXPECT_EQ(own[i].toTensor()._version(), 0) << name;
    ExpectSameBits(own[i], arguments[i], name);
  }
  if (own.size() < 2 || !own[0].isTensor() || !own[1].isTensor()) return;
  Stack equal = own, one = own;
  equal[1] = own[0].deepcopy();
  one[1] = own[0];
  try {
    op.callBoxed(equal);
  } catch (const c10::Error&) {
    return;
  }
  op.callBoxed(one);
  for (size_t i = 0; i < equal.size(); ++i) {
    if (equal[i].isTensor()) ExpectSameBits(equal[i], one[i], name);
  }
}

TEST(PlainFunction, O1_O2_EachOpOfTheList) {
  const c10::AutoGradMode no_grad(false);
  const std::vector<std::string> names = PlainFunctions();
  std::vector<bool> called(names.size());
  for (const c10::OperatorName& op_name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(op_name);
    if (!op || !IsPlainFunction(*op)) continue;
    const std::string name = op_name.name + "." + op_name.overload_name;
    const OpFacts& facts = FactsOf(*op);
    EXPECT_TRUE(facts.pure() && !facts.factory && !facts.scalar_from_metadata) << name;
    for (const Elements elements : {Elements::kFloats, Elements::kInts, Elements::kFlags}) {
      const std::optional<Stack> arguments = Arguments(op->schema(), elements);
      if (!arguments) continue;
      try {
        Stack stack = *arguments;
        op->callBoxed(stack);
      } catch (const c10::Error&) {  // not for these elements
        continue;
      }
      Check(*op, *arguments, name);
      called[static_cast<size_t>(std::find(names.begin(), names.end(), op_name.name) - names.begin())] = true;
    }
  }
  for (size_t i = 0; i < names.size(); ++i) EXPECT_TRUE(called[i]) << names[i];
}

TEST(PlainFunction, O2_NotTheOverloadsThatWrite) {
  const auto is = [](const char* name, const char* overload) {
    return IsPlainFunction(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload));
  };
  EXPECT_TRUE(is("aten::add", "Tensor"));
  EXPECT_FALSE(is("aten::add", "out"));
  EXPECT_FALSE(is("aten::add_", "Tensor"));
  EXPECT_FALSE(is("aten::_unsafe_view", ""));
}

}  // namespace
}  // namespace frametap
