#include "ir/ops/op_facts.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "ir/ops/sizes_follow.h"
#include "ir/ops/takes_any_element.h"

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
constexpr uint16_t kFollows = 1 << 14;     // of a row: sizes and ranks follow from sizes
constexpr uint16_t kTakesAny = 1 << 13;    // … it raises for no element
constexpr uint16_t kByOverload = 1 << 12;  // … one of name.overload goes before it

struct Row {
  const char* name;  // all overloads, or one
  uint16_t bits;
};

// Facts that neither schema nor tag has. kScalarMeta replaces the schema's guess that a number follows from elements.
constexpr Row kRows[] = {
    // Running statistics are written without an annotation.
    {"aten::batch_norm", kWrites},
    {"aten::native_batch_norm", kWrites},
    {"aten::_batch_norm_impl_index", kWrites | kScalarMeta},
    {"aten::cudnn_batch_norm", kWrites},
    {"aten::miopen_batch_norm", kWrites},
    {"aten::instance_norm", kWrites},
    {"aten::batch_norm_update_stats", kWrites},
    {"aten::batch_norm_gather_stats", kWrites},
    {"aten::batch_norm_gather_stats_with_counts", kWrites},
    {"aten::_cudnn_rnn_flatten_weight", kWrites},
    {"aten::_backward", kWrites},
    {"aten::_sobol_engine_scramble_", kWrites},

    // Calls of an autograd.Function or a checkpointed function, which may draw. The recorder has looked at their ops.
    {"frametap::apply", kRandom | kFollows},
    {"frametap::apply_", kRandom | kFollows},
    {"frametap::checkpoint", kRandom | kFollows},
    {"frametap::checkpoint_", kRandom | kFollows},

    // Calls of NumPy. The sizes of their operands are fixed.
    {"frametap::numpy", kRaises | kFollows},
    {"frametap::numpy_view", kRaises | kFollows},
    {"frametap::numpy_", kRaises | kFollows},
    {"frametap::numpy_number", kScalarData | kRaises | kFollows},

    // Quantized graphs of others (backends/quant/decomposed_operators.h).
    {"frametap_decomposed::choose_qparams", kRaises | kFollows},
    {"frametap_decomposed::dequantize_per_channel", kFollows},
    {"frametap_decomposed::dequantize_per_tensor", kFollows},
    {"frametap_decomposed::quantize_per_channel", kFollows},
    {"frametap_decomposed::quantize_per_tensor", kFollows},

    // Factories that ask a tensor for sizes and type.
    {"aten::empty_like", kFactory},
    {"aten::full_like", kFactory},
    {"aten::ones_like", kFactory},
    {"aten::rand_like", kFactory},
    {"aten::randint_like", kFactory | kByOverload},
    {"aten::randint_like.Tensor", kFactory | kRaises},
    {"aten::randint_like.Tensor_generator", kFactory | kRaises},
    {"aten::randn_like", kFactory},
    {"aten::zeros_like", kFactory},

    // Sizes that follow from elements, of ops whose ranks do not. (All others that nothing is known of are taken to make
    // both of elements: sizes_follow.h.)
    {"aten::where", kByOverload},
    {"aten::where.", kDataSize},
    {"aten::nonzero", kDataSize},
    {"aten::nonzero_numpy", kDataSize},
    {"aten::argwhere", kDataSize},
    {"aten::masked_select", kDataSize},
    {"aten::_unique", kDataSize},
    {"aten::_unique2", kDataSize},
    {"aten::unique_dim", kDataSize},
    {"aten::unique_consecutive", kDataSize},
    {"aten::unique_dim_consecutive", kDataSize},
    {"aten::bincount", kDataSize | kRaises},
    {"aten::one_hot", kDataSize | kRaises},
    {"aten::repeat_interleave", kByOverload},
    {"aten::repeat_interleave.Tensor", kDataSize | kRaises},
    {"aten::repeat_interleave.self_Tensor", kDataSize | kRaises},
    {"aten::_ctc_loss", kDataSize | kRaises},
    {"aten::segment_reduce", kDataSize | kRaises},
    {"aten::to_sparse", kDataSize},
    {"aten::_to_sparse", kDataSize},
    {"aten::to_sparse_csr", kDataSize},
    {"aten::to_sparse_csc", kDataSize},
    {"aten::to_sparse_bsr", kDataSize},
    {"aten::to_sparse_bsc", kDataSize},
    {"aten::_to_sparse_csr", kDataSize},
    {"aten::_to_sparse_csc", kDataSize},
    {"aten::_to_sparse_bsr", kDataSize},
    {"aten::_to_sparse_bsc", kDataSize},
    {"aten::coalesce", kDataSize},
    {"aten::_coalesce", kDataSize},
    {"aten::_pack_padded_sequence", kDataSize | kRaises},
    {"aten::_pad_packed_sequence", kDataSize | kRaises},
    {"aten::nested_to_padded_tensor", kDataSize},
    {"aten::_nested_tensor_from_mask", kDataSize},
    {"aten::index", kDataSize | kRaises},  // with a mask; integer indices never
    {"aten::_unsafe_index", kDataSize},
    {"aten::tensor_split", kByOverload},
    {"aten::tensor_split.tensor_indices_or_sections", kDataSize | kRaises},
    {"aten::linalg_lstsq", kDataSize | kSizeRank | kRaises},
    {"aten::resize_as_sparse_", kDataSize},
    {"torchvision::nms", kDataSize},

    // Ranks that follow from sizes.
    {"aten::squeeze", kSizeRank},
    {"aten::squeeze_", kSizeRank},
    {"aten::squeeze_copy", kSizeRank},
    {"aten::cov", kSizeRank | kAsksElements},
    {"aten::corrcoef", kSizeRank | kAsksElements},
    {"aten::linalg_solve_ex", kSizeRank},  // and its relatives: whether `B` is a batch of vectors
    {"aten::_linalg_solve_ex", kSizeRank},

    // Composed ops that ask tensors for elements on their way.
    {"aten::combinations", kAsksElements},
    {"aten::narrow", kByOverload},
    {"aten::narrow.Tensor", kAsksElements},

    // Ops whose number follows from elements (item, is_nonzero, equal, allclose …) have no row, because the guess by
    // the schema is right. The same holds for numbers that each run reads again: facts of
    // sparse and quantized data (_nnz, q_scale), of the storage (is_set_to) and of the object (_version, is_leaf). The
    // numbers of the next rows follow from facts that guards hold.
    {"aten::size", kScalarMeta},
    {"aten::stride", kScalarMeta},
    {"aten::sym_size", kScalarMeta},
    {"aten::sym_stride", kScalarMeta},
    {"aten::sym_numel", kScalarMeta},
    {"aten::sym_is_contiguous", kScalarMeta},
    {"aten::numel", kScalarMeta},
    {"aten::dim", kScalarMeta},
    {"aten::len", kScalarMeta},
    {"aten::element_size", kScalarMeta},
    {"aten::get_device", kScalarMeta},
    {"aten::is_complex", kScalarMeta},
    {"aten::is_floating_point", kScalarMeta},
    {"aten::is_signed", kScalarMeta},
    {"aten::is_contiguous", kScalarMeta},
    {"aten::is_non_overlapping_and_dense", kScalarMeta},
    {"aten::is_strides_like_format", kScalarMeta},
    {"aten::is_same_size", kScalarMeta},
    {"aten::is_conj", kScalarMeta},
    {"aten::is_neg", kScalarMeta},
    {"aten::is_inference", kScalarMeta},
    {"aten::is_distributed", kScalarMeta},
    {"aten::_is_zerotensor", kScalarMeta},
    {"aten::result_type", kScalarMeta},
    {"aten::can_cast", kScalarMeta},
    {"aten::promote_types", kScalarMeta},
    {"aten::_has_compatible_shallow_copy_type", kScalarMeta},
    {"aten::_debug_has_internal_overlap", kScalarMeta},
    {"aten::_fused_sdp_choice", kScalarMeta},
    {"aten::_nnpack_available", kScalarMeta},
    {"aten::cudnn_is_acceptable", kScalarMeta},
    {"aten::is_vulkan_available", kScalarMeta},
    {"aten::_use_cudnn_rnn_flatten_weight", kScalarMeta},
    {"aten::_use_cudnn_ctc_loss", kScalarMeta},
    {"aten::_scaled_dot_product_flash_attention", kScalarMeta},
    {"aten::_scaled_dot_product_cudnn_attention", kScalarMeta},
    {"aten::_scaled_dot_product_fused_attention_overrideable", kScalarMeta},
    {"aten::_flash_attention_forward", kScalarMeta},
    {"aten::_efficient_attention_forward", kScalarMeta},
    {"aten::_cudnn_attention_forward", kScalarMeta},

    // Elements that an op refuses: an invalid index, class or divisor, a matrix without an inverse.
    {"aten::index_put", kRaises},
    {"aten::index_put_", kRaises},
    {"aten::_index_put_impl_", kRaises},
    {"aten::index_select", kRaises},
    {"aten::index_add", kRaises},
    {"aten::index_add_", kRaises},
    {"aten::index_copy", kRaises},
    {"aten::index_copy_", kRaises},
    {"aten::index_fill", kRaises},
    {"aten::index_fill_", kRaises},
    {"aten::index_reduce", kRaises},
    {"aten::index_reduce_", kRaises},
    {"aten::gather", kRaises},
    {"aten::scatter", kRaises},
    {"aten::scatter_", kRaises},
    {"aten::scatter_add", kRaises},
    {"aten::scatter_add_", kRaises},
    {"aten::scatter_reduce", kRaises},
    {"aten::scatter_reduce_", kRaises},
    {"aten::take", kRaises},
    {"aten::take_along_dim", kRaises},
    {"aten::put", kRaises},
    {"aten::put_", kRaises},
    {"aten::masked_fill", kByOverload},  // a number outside of the tensor's type
    {"aten::masked_fill.Tensor", kRaises},
    {"aten::masked_fill_", kByOverload},
    {"aten::masked_fill_.Tensor", kRaises},
    {"aten::_foreach_addcdiv", kByOverload},
    {"aten::_foreach_addcdiv.Tensor", kRaises},
    {"aten::_foreach_addcdiv_", kByOverload},
    {"aten::_foreach_addcdiv_.Tensor", kRaises},
    {"aten::_foreach_addcmul", kByOverload},
    {"aten::_foreach_addcmul.Tensor", kRaises},
    {"aten::_foreach_addcmul_", kByOverload},
    {"aten::_foreach_addcmul_.Tensor", kRaises},
    {"aten::masked_scatter", kRaises},
    {"aten::masked_scatter_", kRaises},
    {"aten::embedding", kRaises},
    {"aten::embedding_bag", kRaises},
    {"aten::_embedding_bag", kRaises},
    {"aten::embedding_renorm_", kRaises},
    {"aten::nll_loss", kRaises},
    {"aten::nll_loss2d", kRaises},
    {"aten::nll_loss_nd", kRaises},
    {"aten::cross_entropy_loss", kRaises},
    {"aten::multi_margin_loss", kRaises},
    {"aten::multilabel_margin_loss", kRaises},
    {"aten::ctc_loss", kRaises},
    {"aten::binary_cross_entropy", kRaises},
    {"aten::bucketize", kRaises},
    {"aten::grid_sampler", kRaises},
    {"aten::max_unpool2d", kRaises},
    {"aten::max_unpool3d", kRaises},
    {"aten::floor_divide", kRaises},
    {"aten::floor_divide_", kRaises},
    {"aten::remainder", kRaises},
    {"aten::remainder_", kRaises},
    {"aten::fmod", kRaises},
    {"aten::fmod_", kRaises},
    {"aten::histc", kRaises},
    {"aten::histogram", kRaises},
    {"aten::cholesky", kRaises},
    {"aten::cholesky_inverse", kRaises},
    {"aten::cholesky_solve", kRaises},
    {"aten::linalg_cholesky", kRaises},
    {"aten::linalg_inv", kRaises},
    {"aten::inverse", kRaises},
    {"aten::linalg_solve", kRaises | kSizeRank},
    {"aten::linalg_eig", kRaises},
    {"aten::linalg_eigh", kRaises},
    {"aten::linalg_eigvals", kRaises},
    {"aten::linalg_eigvalsh", kRaises},
    {"aten::linalg_svd", kRaises},
    {"aten::svd", kRaises},
    {"aten::linalg_svdvals", kRaises},
    {"aten::linalg_matrix_rank", kRaises},
    {"aten::linalg_pinv", kRaises},
    {"aten::linalg_tensorinv", kRaises},
    {"aten::linalg_tensorsolve", kRaises},
    {"aten::linalg_lu_factor", kRaises},
    {"aten::linalg_ldl_factor", kRaises},
    {"aten::linalg_cond", kRaises},
    {"aten::linalg_norm", kRaises},
    {"aten::linalg_matrix_norm", kRaises},
    {"aten::linalg_det", kRaises},
    {"aten::linalg_slogdet", kRaises},
    {"aten::logdet", kRaises},
    {"aten::qr", kRaises},
    {"aten::geqrf", kRaises},
    {"aten::ormqr", kRaises},
    {"aten::_assert_async", kRaises},
    {"aten::_assert_scalar", kRaises},
    {"aten::_functional_assert_async", kRaises},
    {"aten::sym_constrain_range", kRaises},
    {"aten::sym_constrain_range_for_size", kRaises},
    {"aten::multinomial", kRaises},
    {"aten::bernoulli", kRaises},
    {"aten::bernoulli_", kRaises},
    {"aten::normal", kRaises},
    {"aten::poisson", kRaises},
    {"aten::binomial", kRaises},
    {"aten::div", kByOverload},
    {"aten::div.Tensor_mode", kRaises},
    {"aten::div_", kByOverload},
    {"aten::div_.Tensor_mode", kRaises},

    // For sequences that are not packed.
    {"aten::gru", kByOverload},
    {"aten::gru.input", kTakesAny},
    {"aten::lstm", kByOverload},
    {"aten::lstm.input", kTakesAny},
    {"aten::rnn_relu", kByOverload},
    {"aten::rnn_relu.input", kTakesAny},
    {"aten::rnn_tanh", kByOverload},
    {"aten::rnn_tanh.input", kTakesAny},

    // Generators reached without a generator argument and without a tag.
    {"aten::seed", kRandom},
    {"aten::initial_seed", kRandom},
    {"aten::manual_seed", kRandom | kNoResult},
};

uint16_t RowBits(const c10::OperatorName& op) {
  static const auto* const rows = [] {
    auto* map = new absl::flat_hash_map<absl::string_view, uint16_t>();
    for (const Row& row : kRows) map->emplace(row.name, row.bits);
    return map;
  }();
  auto it = rows->find(op.name);
  if (it == rows->end()) return 0;
  if ((it->second & kByOverload) == 0) return it->second;
  const auto own = rows->find(op.name + "." + op.overload_name);
  return own != rows->end() ? own->second : it->second & ~kByOverload;
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
  uint16_t bits = RowBits(op.operator_name());
  const uint16_t schema = SchemaBits(op.schema());
  bits |= (bits & kScalarMeta) != 0 ? schema & ~kScalarData : schema;
  bits |= TagBits(op);
  if (GivesTensor(op.schema()) && (bits & (kDataSize | kFollows)) == 0 && !SizesFollowFromSizes(op))
    bits |= kDataSize | kSizeRank;                                                                  // F1
  if ((bits & kWrites) != 0 && !KeepsMetadata(op)) bits |= kMetadata;                               // F1
  if ((bits & (kTakesAny | kScalarMeta | kFactory)) == 0 && !TakesAnyElement(op)) bits |= kRaises;  // F1
  return Combinations()[bits % kAllBits];
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
