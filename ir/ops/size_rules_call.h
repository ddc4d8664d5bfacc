// The language of size rules: OpCall, a node as its rule sees it; Size and Shape, answers that may be missing.
//   Q1  A missing answer makes all results computed from it missing, so that a rule need not test for it.
//   Q2  An argument is found by its name in the schema: one rule serves overloads that order their arguments otherwise.
// Not here: the rules (size_rules*.cc) and what they promise (size_rules.h).
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ir/ops/op_rows.h"
#include "ir/ops/size_rules.h"

namespace frametap {

class Size {
 public:
  Size() = default;                               // missing
  Size(int64_t n) : expr_(SizeExpr::Const(n)) {}  // implicit: rules are arithmetic
  explicit Size(std::optional<SizeExpr> expr) : expr_(std::move(expr)) {}

  const std::optional<SizeExpr>& expr() const { return expr_; }
  // Never negative in a call that succeeds. A size is; a number if it is computed from nothing else.
  bool natural() const { return expr_ && expr_->natural; }
  std::optional<int64_t> constant() const;
  bool is(int64_t n) const { return constant() == n; }
  Size AsNatural() const;

  friend bool operator==(const Size& a, const Size& b) { return a.expr_ && a.expr_ == b.expr_; }

 private:
  std::optional<SizeExpr> expr_;
};

Size operator+(const Size& a, const Size& b);
Size operator-(const Size& a, const Size& b);
Size operator*(const Size& a, const Size& b);
Size operator/(const Size& a, const Size& b);  // towards minus infinity
Size Min(const Size& a, const Size& b);
Size Max(const Size& a, const Size& b);
Size CeilDiv(const Size& a, const Size& b);  // b > 0
Size IsNegative(const Size& a);              // 1 or 0
Size Product(absl::Span<const Size> sizes);
Size BroadcastSize(const std::vector<Size>& sizes);  // of dimensions that are broadcast with each other

class Shape {
 public:
  Shape() = default;  // missing
  Shape(std::vector<Size> sizes) : sizes_(std::move(sizes)) {}
  Shape(std::initializer_list<Size> sizes) : sizes_(std::vector<Size>(sizes)) {}

  static Shape OfRank0() { return Shape(std::vector<Size>()); }

  bool known() const { return sizes_.has_value(); }
  int64_t rank() const { return sizes_ ? static_cast<int64_t>(sizes_->size()) : -1; }
  absl::Span<const Size> sizes() const { return sizes_ ? absl::MakeConstSpan(*sizes_) : absl::Span<const Size>(); }
  // A negative dimension counts from the end. Missing where there is none; the functions below give a missing shape.
  Size operator[](int64_t dim) const;

  Shape With(int64_t dim, Size size) const;
  Shape Without(int64_t dim) const;
  Shape Inserted(int64_t dim, Size size) const;   // before `dim`; at the end if `dim` is the rank
  Shape Range(int64_t begin, int64_t end) const;  // both may be negative
  Shape From(int64_t begin) const { return Range(begin, rank()); }
  Shape Then(const Shape& more) const;

 private:
  std::optional<std::vector<Size>> sizes_;
};

Shape BroadcastShape(absl::Span<const Shape> shapes);

// The dimension `dim` of a tensor of this rank, or none. A tensor without dimensions has 0 and -1, as everywhere in ATen.
std::optional<int64_t> WrapDim(int64_t dim, int64_t rank);

class OpCall {
 public:
  // `output` is the result of the node, and `item` the element, if the result is a list. `rank` is the answer's rank.
  OpCall(const Graph& graph, const Node& node, size_t output, int64_t item, int64_t rank,
         const absl::flat_hash_set<ValueId>& naturals)
      : graph_(graph), node_(node), output_(output), item_(item), rank_(rank), naturals_(naturals) {}

  size_t output() const { return output_; }
  int64_t item() const { return item_; }
  int64_t rank() const { return rank_; }

  bool Has(absl::string_view name) const { return Find(name) != nullptr; }
  bool IsNone(absl::string_view name) const;  // or there is no such argument

  Shape First() const;  // of the first argument, a tensor
  Shape Tensor(absl::string_view name) const;
  std::optional<c10::ScalarType> Dtype(absl::string_view name) const;  // of a tensor
  std::vector<Shape> TensorArgs() const;                               // those that are no lists and not None
  // The tensors of a list; an entry that is None is a missing shape.
  std::optional<std::vector<Shape>> List(absl::string_view name) const;
  absl::Span<const Arg> Items(absl::string_view name) const;  // of a list that holds values
  Shape TensorOf(const Arg& arg) const;
  std::optional<c10::ScalarType> DtypeOf(const Arg& arg) const;

  Size Int(absl::string_view name) const;
  std::optional<std::vector<Size>> Ints(absl::string_view name) const;
  std::optional<int64_t> ConstInt(absl::string_view name) const { return Int(name).constant(); }
  // A flag that there is not is false.
  std::optional<bool> Flag(absl::string_view name) const;
  std::optional<std::string> Text(absl::string_view name) const;
  std::optional<std::vector<double>> Floats(absl::string_view name) const;

  std::optional<int64_t> Dim(absl::string_view name, int64_t rank) const;
  std::optional<std::vector<int64_t>> Dims(absl::string_view name, int64_t rank) const;

 private:
  const Arg* Find(absl::string_view name) const;
  Size IntOf(const Arg& arg) const;

  const Graph& graph_;
  const Node& node_;
  size_t output_;
  int64_t item_;
  int64_t rank_;
  const absl::flat_hash_set<ValueId>& naturals_;
};

// The rules that ops.def names.
namespace ops {

SizeRule Like, Broadcast, Reduce, Loss, ClassLoss, CosineSimilarity, MatMul, Linear, Mm, AddMm, Bmm, BaddBmm, AddBmm,
    Histogram, GroupedMm, Mv, AddMv, Outer, AddR, Dot, Inner, TensorDot, Einsum, CDist, Bilinear, One;  // size_rules.cc
SizeRule View, Expand, LikeOther, Sized, Permute, Transpose, TransposeLast, Reverse, MoveDim, Rot90, Unsqueeze, Squeeze,
    Flatten, Unflatten, Ravel, AtLeast1d, Select, Slice, Narrow, Diagonal, DiagEmbed, Diag, Unfold, Diff, TopK,
    Multinomial, Repeat, RepeatInterleave, Cat, HStack, VStack, Stack, Split, Chunk, SplitWithSizes, TensorSplit,
    TensorSplitAt, BroadcastList, MeshGrid, Index, IndexSelect, LikeIndex, TakeAlongDim, MaskedScatter, LikeSelf,
    OneHot, ViewDtype, ViewAsReal, ViewAsComplex, Arange, Eye, RandPerm, LinSpace, Window;  // size_rules_view.cc
SizeRule Conv, Pool1d, Pool2d, Pool3d, AdaptivePool1d, AdaptivePool2d, AdaptivePool3d, Im2Col, Col2Im, Upsample,
    PixelShuffle, GridSample, AffineGrid, Pad, NativeLayerNorm, NativeGroupNorm, NativeBatchNorm, Glu, Embedding,
    Attention, Recurrent, RecurrentCell, Fft, RealFft, InverseRealFft;  // size_rules_nn.cc

}  // namespace ops
}  // namespace frametap
