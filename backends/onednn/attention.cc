#include "backends/onednn/attention.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "backends/onednn/handles.h"
#include "backends/onednn/library.h"
#include "backends/onednn/scratchpad.h"
#include "backends/onednn/tiled_attention.h"
#include "backends/onednn/wide_attention.h"

namespace frametap::onednn {
namespace {

constexpr size_t kMostBytesOfScores = size_t{8} << 20;

// All that the primitives depend on.
struct Extents {
  std::array<int64_t, 6> sizes;                   // batch, heads, queries, keys, features of a key, features of a value
  std::array<std::array<int64_t, 3>, 3> strides;  // of q, k and v: batch, head, position
  double scale;
  int threads;
  friend bool operator==(const Extents&, const Extents&) = default;

  int64_t rows() const { return sizes[0] * sizes[1] * sizes[2]; }
  int64_t keys() const { return sizes[3]; }
};

// The strides of a dimension with one element are arbitrary.
std::array<int64_t, 3> StridesOf(const at::Tensor& x) {
  std::array<int64_t, 3> strides{};
  int64_t dense = x.size(3);
  for (size_t i = 3; i-- > 0;) {
    const auto dim = static_cast<int64_t>(i);
    strides[i] = x.size(dim) == 1 ? dense : x.stride(dim);
    dense = std::max(dense, strides[i] * x.size(dim));
  }
  return strides;
}

MemoryDesc Describe(const std::array<int64_t, 4>& sizes, const std::array<int64_t, 4>& strides, dnnl_data_type_t type) {
  dnnl_memory_desc_t made = nullptr;
  Check(Api().memory_desc_create_with_strides(&made, 4, sizes.data(), type, strides.data()), "describe memory");
  return MemoryDesc(made);
}

// A primitive with its arguments, whose memory is set before each run.
struct Kernel {
  explicit Kernel(dnnl_primitive_desc_t made) : desc(made) {
    dnnl_primitive_t created = nullptr;
    Check(Api().primitive_create(&created, made), "make attention");
    primitive.reset(created);
  }

  void Take(int argument, const_dnnl_memory_desc_t of) {
    memories.push_back(MakeMemory(of, DNNL_MEMORY_NONE));
    arguments.push_back({argument, memories.back().get()});
  }

  // `data`: in the order of Take.
  void Run(std::initializer_list<const void*> data) const {
    size_t i = 0;
    for (const void* one : data) {
      Check(Api().memory_set_data_handle(memories[i++].get(), const_cast<void*>(one)), "take an argument of attention");
    }
    Check(Api().primitive_execute(primitive.get(), StreamOfThread(), static_cast<int>(arguments.size()),
                                  arguments.data()),
          "run attention");
  }

  PrimitiveDesc desc;
  Primitive primitive;
  std::vector<Memory> memories;
  std::vector<dnnl_exec_arg_t> arguments;
};

Attributes ScaledBy(double scale) {
  dnnl_post_ops_t ops = nullptr;
  Check(Api().post_ops_create(&ops), "scale scores");
  const PostOps owned(ops);
  Check(Api().post_ops_append_eltwise(ops, dnnl_eltwise_linear, static_cast<float>(scale), 0), "scale scores");
  dnnl_primitive_attr_t made = nullptr;
  Check(Api().primitive_attr_create(&made), "scale scores");
  Attributes attributes(made);
  Check(Api().primitive_attr_set_post_ops(made, ops), "scale scores");
  return attributes;
}

Kernel Product(const MemoryDesc& a, const MemoryDesc& b, const MemoryDesc& result, const_dnnl_primitive_attr_t how) {
  dnnl_primitive_desc_t made = nullptr;
  Check(Api().matmul_primitive_desc_create(&made, Cpu(), a.get(), b.get(), nullptr, result.get(), how), "multiply");
  Kernel kernel(made);
  kernel.Take(DNNL_ARG_SRC, a.get());
  kernel.Take(DNNL_ARG_WEIGHTS, b.get());
  kernel.Take(DNNL_ARG_DST, result.get());
  return kernel;
}

Kernel Softmax(const MemoryDesc& scores, const MemoryDesc& probabilities) {
  dnnl_primitive_desc_t made = nullptr;
  Check(Api().softmax_forward_primitive_desc_create(&made, Cpu(), dnnl_forward_inference, dnnl_softmax_accurate,
                                                    scores.get(), probabilities.get(), 3, nullptr),
        "make a softmax");
  Kernel kernel(made);
  kernel.Take(DNNL_ARG_SRC, scores.get());
  kernel.Take(DNNL_ARG_DST, probabilities.get());
  return kernel;
}

// The kernels of one size, for one thread at a time.
struct Sized {
  Sized(const Extents& e, Kernel a, Kernel b, Kernel c)
      : extents(e), scores(std::move(a)), softmax(std::move(b)), values(std::move(c)) {}

  const Extents extents;
  const Kernel scores, softmax, values;
};

std::unique_ptr<Sized> Make(const Extents& e) {
  const auto [batch, heads, queries, keys, width, depth] = e.sizes;
  const auto& [q, k, v] = e.strides;
  const MemoryDesc q_desc = Describe({batch, heads, queries, width}, {q[0], q[1], q[2], 1}, dnnl_bf16);
  const MemoryDesc k_desc = Describe({batch, heads, width, keys}, {k[0], k[1], 1, k[2]}, dnnl_bf16);
  const MemoryDesc v_desc = Describe({batch, heads, keys, depth}, {v[0], v[1], v[2], 1}, dnnl_bf16);
  const std::array<int64_t, 4> square{batch, heads, queries, keys};
  const std::array<int64_t, 4> dense{heads * queries * keys, queries * keys, keys, 1};
  const MemoryDesc scores = Describe(square, dense, dnnl_f32), probabilities = Describe(square, dense, dnnl_bf16);
  const MemoryDesc result =
      Describe({batch, heads, queries, depth}, {queries * heads * depth, depth, heads * depth, 1}, dnnl_bf16);  // A2
  const Attributes scaled = ScaledBy(e.scale);
  return std::make_unique<Sized>(e, Product(q_desc, k_desc, scores, scaled.get()), Softmax(scores, probabilities),
                                 Product(probabilities, v_desc, result, nullptr));
}

// A3
const Sized& Find(const Extents& extents) {
  thread_local std::vector<std::unique_ptr<Sized>> kept;  // the one used last first
  const auto found =
      std::find_if(kept.begin(), kept.end(), [&](const auto& sized) { return sized->extents == extents; });
  if (found != kept.end()) {
    std::rotate(kept.begin(), found, found + 1);
    return *kept.front();
  }
  std::unique_ptr<Sized> made = Make(extents);
  if (kept.size() == kMaxAttentions) kept.pop_back();
  kept.insert(kept.begin(), std::move(made));
  return *kept.front();
}

constexpr float kHidden = -std::numeric_limits<float>::infinity();

void HideLaterKeys(const Extents& extents, float* scores) {
  const int64_t queries = extents.sizes[2], keys = extents.keys();
  for (int64_t row = 0; row < extents.rows(); ++row) {
    const int64_t seen = std::min(row % queries + 1, keys);
    std::fill(scores + row * keys + seen, scores + (row + 1) * keys, kHidden);
  }
}

// A4. `added`: of AddedMask.
void Apply(const Extents& extents, const at::Tensor& added, bool replaces, float* scores) {
  const auto [batch, heads, queries, keys, width, depth] = extents.sizes;
  const at::Tensor mask = added.expand({batch, heads, queries, keys});
  for (int64_t row = 0; row < extents.rows(); ++row) {
    const int64_t query = row % queries, head = row / queries % heads, sample = row / queries / heads;
    const float* const more =
        mask.const_data_ptr<float>() + sample * mask.stride(0) + head * mask.stride(1) + query * mask.stride(2);
    float* const to = scores + row * keys;
    for (int64_t i = 0; i < keys; ++i) to[i] = !replaces ? to[i] + more[i] : more[i] == 0 ? to[i] : more[i];
  }
}

// Returns the rows of scores whose keys are all hidden, for which the softmax is NaN.
std::vector<int64_t> RowsWithoutKeys(const Extents& extents, const float* scores) {
  const int64_t keys = extents.keys();
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < extents.rows(); ++row) {
    const float* const first = scores + row * keys;
    if (std::all_of(first, first + keys, [](float score) { return score == kHidden; })) rows.push_back(row);
  }
  return rows;
}

// oneDNN takes no memory that is expanded, nor features with gaps between them.
at::Tensor Dense(const at::Tensor& x) {
  bool is_dense = x.size(3) == 1 || x.stride(3) == 1;
  for (int64_t i = 0; i < 3; ++i) is_dense = is_dense && (x.size(i) == 1 || x.stride(i) >= x.size(3));
  return is_dense ? x : x.contiguous();
}

size_t BytesOfScores(const at::Tensor& q, const at::Tensor& k) {
  return sizeof(float) * static_cast<size_t>(q.size(0) * q.size(1) * q.size(2) * k.size(2));
}

// Whether a kernel of our own takes factors of the type.
bool IsOurs(const at::Tensor& q) { return q.scalar_type() == at::kFloat ? HasWideVectors() : HasTiles(); }

// Returns a mask that is added, with dense keys. As in torch, a hidden score that is NaN or infinite makes the result NaN.
at::Tensor AddedMask(const at::Tensor& mask, int64_t keys) {
  at::Tensor added = mask;
  if (mask.scalar_type() == at::kBool) {
    added = at::zeros(mask.sizes(), at::kFloat).masked_fill_(mask.logical_not(), kHidden);
  }
  if (added.dim() > 0 && added.size(-1) == keys && (keys == 1 || added.stride(-1) == 1)) return added;
  at::DimVector sizes(added.sizes());
  if (sizes.empty()) sizes.push_back(1);
  sizes.back() = keys;
  return added.expand(sizes).contiguous();
}

}  // namespace

bool CanAttend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask) {
  const at::ScalarType type = q.scalar_type();
  if (type != at::kFloat && type != at::kBFloat16) return false;
  for (const at::Tensor& x : {q, k, v}) {
    const bool is_plain = x.dim() == 4 && x.scalar_type() == type && x.device().is_cpu() && x.numel() > 0;
    if (!is_plain || x.size(0) != q.size(0) || q.size(1) % x.size(1) != 0) return false;
  }
  if (mask.defined()) {
    const bool is_plain =
        mask.device().is_cpu() && (mask.scalar_type() == at::kFloat || mask.scalar_type() == at::kBool);
    if (!is_plain || !at::is_expandable_to(mask.sizes(), {q.size(0), q.size(1), q.size(2), k.size(2)})) return false;
  }
  if (k.size(3) != q.size(3) || v.size(2) != k.size(2) || v.size(1) != k.size(1)) return false;
  if (IsOurs(q)) {
    const int64_t fewest = type == at::kFloat ? std::min(kFewestFloatQueries, k.size(2)) : kFewestQueries;
    return q.size(2) >= std::max(fewest, kFewestQueries) && k.size(2) <= kMostKeys;
  }
  return type == at::kBFloat16 && HasBfloat16Products() && k.size(1) == q.size(1) &&
         BytesOfScores(q, k) <= kMostBytesOfScores;
}

at::Tensor Attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask,
                  const AttentionOptions& options) {
  TORCH_CHECK(CanAttend(q, k, v, mask), "attention: got sizes ", q.sizes(), ", ", k.sizes(), " and ", v.sizes());
  const at::Tensor query = Dense(q), key = Dense(k), value = Dense(v);
  const at::Tensor added = mask.defined() ? AddedMask(mask, k.size(2)) : mask;
  if (IsOurs(q)) {
    const auto attend = q.scalar_type() == at::kFloat ? AttendWide : AttendInTiles;
    return attend(query, key, value, added, options).transpose(1, 2);
  }
  const Extents extents{{q.size(0), q.size(1), q.size(2), k.size(2), q.size(3), v.size(3)},
                        {StridesOf(query), StridesOf(key), StridesOf(value)},
                        options.scale,
                        at::get_num_threads()};
  at::Tensor result = at::detail::empty_cpu({q.size(0), q.size(2), q.size(1), v.size(3)}, at::kBFloat16);
  constexpr size_t kLine = 64;
  const size_t bytes = (BytesOfScores(q, k) + kLine - 1) / kLine * kLine;
  auto* const scores = static_cast<float*>(Scratchpad<Sized>::OfThread(bytes + bytes / 2));
  void* const probabilities = reinterpret_cast<char*>(scores) + bytes;
  const Sized& sized = Find(extents);
  sized.scores.Run({query.const_data_ptr(), key.const_data_ptr(), scores});
  if (options.is_causal) HideLaterKeys(extents, scores);
  std::vector<int64_t> zeros;
  if (added.defined()) {
    Apply(extents, added, options.mask_replaces, scores);
    if (!options.gives_nan) zeros = RowsWithoutKeys(extents, scores);
  }
  sized.softmax.Run({scores, probabilities});
  for (const int64_t row : zeros) {
    const auto bytes_of_row = static_cast<size_t>(extents.keys()) * sizeof(at::BFloat16);
    std::memset(static_cast<char*>(probabilities) + static_cast<size_t>(row) * bytes_of_row, 0, bytes_of_row);
  }
  sized.values.Run({probabilities, value.const_data_ptr(), result.mutable_data_ptr()});
  return result.transpose(1, 2);
}

}  // namespace frametap::onednn
