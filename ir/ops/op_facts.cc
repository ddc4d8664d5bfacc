#include "ir/ops/op_facts.h"

#include <ATen/core/enum_tag.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "ir/ops/op_rows.h"
#include "ir/ops/sizes_follow.h"

namespace frametap {
namespace {

enum Bit : uint16_t {
  kWrites = 1 << 0,
  kDataSize = 1 << 1,
  kScalarData = 1 << 2,
  kScalarMeta = 1 << 3,
  kRandom = 1 << 4,
  kFactory = 1 << 5,
  kSizeRank = 1 << 6,
  kList = 1 << 7,
  kNoResult = 1 << 8,
  kRaises = 1 << 9,
  kMetadata = 1 << 10,
  kAsksElements = 1 << 11,
};
constexpr size_t kAllBits = 1 << 12;

uint16_t RowBits(const OpRow& row) {
  constexpr std::pair<ops::Fact, Bit> kBits[] = {
      {ops::kWrites, kWrites},
      {ops::kRandom, kRandom},
      {ops::kFactory, kFactory},
      {ops::kNumberFromMetadata, kScalarMeta},
      {ops::kNumberFromData, kScalarData},
      {ops::kRaises, kRaises},
      {ops::kAsksForElements, kAsksElements},
      {ops::kSizesFromData, kDataSize},
      {ops::kRankFromSizes, kSizeRank},
  };
  uint16_t bits = 0;
  for (const auto& [fact, bit] : kBits) bits |= row.Has(fact) ? bit : 0;
  return bits;
}

enum class Holds : uint8_t { kNothing, kTensor, kTensorList, kNumber, kOther };

Holds Kind(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      return Holds::kTensor;
    case c10::TypeKind::OptionalType:
      return Kind(*type.castRaw<c10::OptionalType>()->getElementType());
    case c10::TypeKind::ListType: {
      const Holds element = Kind(*type.castRaw<c10::ListType>()->getElementType());
      return element == Holds::kTensor ? Holds::kTensorList : Holds::kOther;
    }
    case c10::TypeKind::IntType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::BoolType:
    case c10::TypeKind::NumberType:
    case c10::TypeKind::ComplexType:
    case c10::TypeKind::SymIntType:
    case c10::TypeKind::SymFloatType:
    case c10::TypeKind::SymBoolType:
      return Holds::kNumber;
    case c10::TypeKind::GeneratorType:
    case c10::TypeKind::NoneType:
      return Holds::kNothing;
    default:
      return Holds::kOther;
  }
}

bool GivesTensor(const c10::FunctionSchema& schema) {
  const auto& returns = schema.returns();
  return std::any_of(returns.begin(), returns.end(), [](const c10::Argument& r) {
    const Holds holds = Kind(*r.type());
    return holds == Holds::kTensor || holds == Holds::kTensorList || holds == Holds::kOther;
  });
}

bool HoldsGenerator(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::GeneratorType) return true;
  const auto* optional = type.castRaw<c10::OptionalType>();
  return optional != nullptr && optional->getElementType()->kind() == c10::TypeKind::GeneratorType;
}

uint16_t SchemaBits(const c10::FunctionSchema& schema) {
  uint16_t bits = 0;
  bool takes_tensor = false;
  bool gives_tensor = false;
  for (const c10::Argument& a : schema.arguments()) {
    if (a.alias_info() != nullptr && a.alias_info()->isWrite()) bits |= kWrites;
    const Holds holds = Kind(*a.type());
    if (holds == Holds::kTensor || holds == Holds::kTensorList) takes_tensor = true;
    if (HoldsGenerator(*a.type())) bits |= kRandom;
  }
  for (const c10::Argument& r : schema.returns()) {
    const Holds holds = Kind(*r.type());
    if (holds == Holds::kTensor || holds == Holds::kTensorList) gives_tensor = true;
    if (holds == Holds::kTensorList) bits |= kList;
    if (holds == Holds::kNumber) bits |= kScalarData;
  }
  if (gives_tensor && !takes_tensor) bits |= kFactory;
  if (schema.returns().empty()) bits |= kNoResult;
  return bits;
}

uint16_t TagBits(const c10::OperatorHandle& op) {
  uint16_t bits = 0;
  for (const at::Tag tag : op.getTags()) {
    if (tag == at::Tag::data_dependent_output) bits |= kScalarData;
    if (tag == at::Tag::dynamic_output_shape) bits |= kDataSize;
    if (tag == at::Tag::nondeterministic_seeded) bits |= kRandom;
    if (tag == at::Tag::inplace_view || tag == at::Tag::maybe_aliasing_or_mutating) bits |= kWrites;
  }
  return bits;
}

// For one tensor and numbers: elements of another one may be the beginning of the view (narrow).
bool IsView(const c10::FunctionSchema& schema) {
  bool is_view = false;
  for (const c10::Argument& a : schema.arguments()) {
    if (a.alias_info() == nullptr) {
      const Holds holds = Kind(*a.type());
      if (holds == Holds::kTensor || holds == Holds::kTensorList) return false;
      continue;
    }
    if (a.alias_info()->isWrite()) return false;
    is_view = true;
  }
  return is_view;
}

bool TakesAnyElement(const c10::OperatorHandle& op, const OpRow& row) {
  if (row.Has(ops::kAnyElement)) return true;
  return IsOfTorch(op) && (op.hasTag(at::Tag::pointwise) || IsView(op.schema()));  // F3
}

// Every combination of facts exists once, so that an answer outlives the op it was given for.
const std::array<OpFacts, kAllBits>& Combinations() {
  static const auto* const all = [] {
    auto* facts = new std::array<OpFacts, kAllBits>();
    for (size_t bits = 0; bits < kAllBits; ++bits) {
      OpFacts& f = (*facts)[bits];
      f.writes_inputs = bits & kWrites;
      f.data_dependent_size = bits & kDataSize;
      f.scalar_from_data = bits & kScalarData;
      f.scalar_from_metadata = bits & kScalarMeta;
      f.random = bits & kRandom;
      f.factory = bits & kFactory;
      f.size_dependent_rank = bits & kSizeRank;
      f.list_result = bits & kList;
      f.no_result = bits & kNoResult;
      f.raises_on_elements = bits & kRaises;
      f.changes_metadata = bits & kMetadata;
      f.asks_for_elements = bits & kAsksElements;
    }
    return facts;
  }();
  return *all;
}

// Counts the ops that have gone. An op that is defined later may have the address of one of them.
class Departures : public c10::OpRegistrationListener {
 public:
  static uint64_t Count() {
    // Never taken back: ops go, too, when the process ends.
    static const auto* const handle = new c10::RegistrationHandleRAII(
        c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Departures>()));
    (void)handle;
    return count_.load(std::memory_order_acquire);
  }
  void onOperatorRegistered(const c10::OperatorHandle&) override {}
  void onOperatorDeregistered(const c10::OperatorHandle&) override { count_.fetch_add(1, std::memory_order_release); }

 private:
  static inline std::atomic<uint64_t> count_{1};
};

const OpFacts& WorkOut(const c10::OperatorHandle& op) {
  const OpRow row = OpRowOf(op);
  uint16_t bits = RowBits(row);
  // The schema's guess is that a number follows from elements.
  const uint16_t schema = SchemaBits(op.schema());
  bits |= (bits & kScalarMeta) != 0 ? schema & ~kScalarData : schema;
  bits |= TagBits(op);
  if (GivesTensor(op.schema()) && (bits & kDataSize) == 0 && !SizesFollowFromSizes(op, row))
    bits |= kDataSize | kSizeRank;                                                           // F1
  if ((bits & kWrites) != 0 && !KeepsMetadata(op, row)) bits |= kMetadata;                   // F1
  if ((bits & (kScalarMeta | kFactory)) == 0 && !TakesAnyElement(op, row)) bits |= kRaises;  // F1
  return Combinations()[bits];
}

}  // namespace

const OpFacts& FactsOf(const c10::OperatorHandle& op) {
  struct Answer {
    const void* schema = nullptr;
    uint64_t departures = 0;
    const OpFacts* facts = nullptr;
  };
  // By address; of two at one place the later one. On the heap: the static block for
  // thread-local variables is small. Where a library does not fit, each use of one costs a call.
  thread_local const auto table = std::make_unique<std::array<Answer, 64>>();
  std::array<Answer, 64>& answers = *table;
  const void* const schema = &op.schema();
  Answer& answer = answers[(reinterpret_cast<uintptr_t>(schema) >> 6) % answers.size()];
  const uint64_t departures = Departures::Count();
  if (answer.schema != schema || answer.departures != departures) answer = {schema, departures, &WorkOut(op)};
  return *answer.facts;
}

}  // namespace frametap
