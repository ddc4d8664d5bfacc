#include "ir/ops/size_rules_call.h"

#include <algorithm>

#include "ir/graph/builtin_op.h"

namespace frametap {
namespace {

Size Apply(BuiltinOp op, const Size& a, const Size& b) {
  return a.expr() && b.expr() ? Size(SizeExpr::Of(op, *a.expr(), *b.expr())) : Size();
}

// Whether a number is never negative, by the nodes that compute it. Deeper nests of them are rare.
bool IsNatural(const Graph& graph, const absl::flat_hash_set<ValueId>& known, const Arg& arg, int depth = 4) {
  if (arg.kind == Arg::Kind::kConst) return arg.constant.isInt() && arg.constant.toInt() >= 0;
  if (arg.kind != Arg::Kind::kValue || depth == 0) return false;
  if (known.contains(arg.value)) return true;
  const NodeId def = graph.value(arg.value).def;
  if (!def.valid()) return false;
  const Node& node = graph.node(def);
  const auto operand = [&](size_t i) {
    return i < node.args.size() && IsNatural(graph, known, node.args[i], depth - 1);
  };
  return node.is_scalar() && GivesNatural(node.builtin_op, operand(0), operand(1));
}

bool IsNumberOrNone(const Graph& graph, const Arg& arg) {
  if (arg.kind == Arg::Kind::kConst) return !arg.constant.isTensor() || !arg.constant.toTensor().defined();
  if (arg.kind != Arg::Kind::kValue) return false;
  return graph.value(arg.value).type.is_number();
}

bool IsTensor(const c10::Type& type) {
  if (const auto* optional = type.castRaw<c10::OptionalType>()) return IsTensor(*optional->getElementType());
  return type.kind() == c10::TypeKind::TensorType;
}

}  // namespace

std::optional<int64_t> Size::constant() const {
  if (!expr_ || expr_->kind != SizeExpr::Kind::kConst) return std::nullopt;
  return expr_->number;
}

Size Size::AsNatural() const {
  Size size = *this;
  if (size.expr_) size.expr_->natural = true;
  return size;
}

Size operator+(const Size& a, const Size& b) { return Apply(BuiltinOp::kIntAdd, a, b); }
Size operator-(const Size& a, const Size& b) { return Apply(BuiltinOp::kIntSub, a, b); }
Size operator*(const Size& a, const Size& b) { return Apply(BuiltinOp::kIntMul, a, b); }
Size operator/(const Size& a, const Size& b) { return Apply(BuiltinOp::kIntFloorDiv, a, b); }
Size Min(const Size& a, const Size& b) { return Apply(BuiltinOp::kIntMin, a, b); }
Size Max(const Size& a, const Size& b) { return Apply(BuiltinOp::kIntMax, a, b); }
Size CeilDiv(const Size& a, const Size& b) { return (a + (b - 1)) / b; }

Size IsNegative(const Size& a) { return a.natural() ? Size(0) : Min(Max(0 - a, 0), 1); }

Size Product(absl::Span<const Size> sizes) {
  Size product = 1;
  for (const Size& s : sizes) product = product * s;
  return product;
}

Size BroadcastSize(const std::vector<Size>& sizes) {
  Size all = 1;
  for (const Size& size : sizes) all = Apply(BuiltinOp::kIntBroadcast, all, size);
  return all;
}

Size Shape::operator[](int64_t dim) const {
  if (dim < 0) dim += rank();
  return dim >= 0 && dim < rank() ? (*sizes_)[dim] : Size();
}

Shape Shape::With(int64_t dim, Size size) const { return Without(dim).Inserted(dim < 0 ? dim + rank() : dim, size); }

Shape Shape::Without(int64_t dim) const {
  if (dim < 0) dim += rank();
  if (dim < 0 || dim >= rank()) return Shape();
  std::vector<Size> sizes = *sizes_;
  sizes.erase(sizes.begin() + dim);
  return sizes;
}

Shape Shape::Inserted(int64_t dim, Size size) const {
  if (dim < 0 || dim > rank()) return Shape();
  std::vector<Size> sizes = *sizes_;
  sizes.insert(sizes.begin() + dim, std::move(size));
  return sizes;
}

Shape Shape::Range(int64_t begin, int64_t end) const {
  if (begin < 0) begin += rank();
  if (end < 0) end += rank();
  if (begin < 0 || end < begin || end > rank()) return Shape();
  return std::vector<Size>(sizes_->begin() + begin, sizes_->begin() + end);
}

Shape Shape::Then(const Shape& more) const {
  if (!known() || !more.known()) return Shape();
  std::vector<Size> sizes = *sizes_;
  sizes.insert(sizes.end(), more.sizes_->begin(), more.sizes_->end());
  return sizes;
}

Shape BroadcastShape(absl::Span<const Shape> shapes) {
  int64_t rank = 0;
  for (const Shape& s : shapes) {
    if (!s.known()) return Shape();
    rank = std::max(rank, s.rank());
  }
  std::vector<Size> result;
  for (int64_t from_end = rank; from_end > 0; --from_end) {
    std::vector<Size> sizes;
    for (const Shape& s : shapes) {
      if (s.rank() >= from_end) sizes.push_back(s[-from_end]);
    }
    result.push_back(BroadcastSize(sizes));
  }
  return result;
}

std::optional<int64_t> WrapDim(int64_t dim, int64_t rank) {
  if (rank < 0) return std::nullopt;
  const int64_t range = std::max<int64_t>(rank, 1);
  if (dim < -range || dim >= range) return std::nullopt;
  return dim < 0 ? dim + range : dim;
}

const Arg* OpCall::Find(absl::string_view name) const {
  const auto& arguments = node_.op->schema().arguments();
  for (size_t i = 0; i < arguments.size() && i < node_.args.size(); ++i) {
    if (arguments[i].name() == name) return &node_.args[i];
  }
  return nullptr;
}

bool OpCall::IsNone(absl::string_view name) const {
  const Arg* arg = Find(name);
  return arg == nullptr || (arg->kind == Arg::Kind::kConst && arg->constant.isNone());
}

Shape OpCall::TensorOf(const Arg& arg) const {
  std::vector<Size> sizes;
  if (arg.kind == Arg::Kind::kValue) {
    const Type& type = graph_.value(arg.value).type;
    if (type.kind != Type::Kind::kTensor) return Shape();
    for (size_t d = 0; d < type.sizes.size(); ++d) {
      sizes.push_back(Size(SizeExpr::SizeOf(arg.value, static_cast<int64_t>(d))));
    }
    return sizes;
  }
  if (arg.kind == Arg::Kind::kConst && arg.constant.isTensor() && arg.constant.toTensor().defined()) {
    for (const int64_t n : arg.constant.toTensor().sizes()) sizes.push_back(n);
    return sizes;
  }
  return Shape();
}

std::optional<c10::ScalarType> OpCall::DtypeOf(const Arg& arg) const {
  if (arg.kind == Arg::Kind::kValue) {
    const Type& type = graph_.value(arg.value).type;
    if (type.kind == Type::Kind::kTensor) return type.dtype;
  } else if (arg.kind == Arg::Kind::kConst && arg.constant.isTensor()) {
    return arg.constant.toTensor().scalar_type();
  }
  return std::nullopt;
}

Shape OpCall::First() const { return node_.args.empty() ? Shape() : TensorOf(node_.args[0]); }

Shape OpCall::Tensor(absl::string_view name) const {
  const Arg* arg = Find(name);
  return arg == nullptr ? Shape() : TensorOf(*arg);
}

std::optional<c10::ScalarType> OpCall::Dtype(absl::string_view name) const {
  const Arg* arg = Find(name);
  return arg == nullptr ? std::nullopt : DtypeOf(*arg);
}

std::vector<Shape> OpCall::TensorArgs() const {
  std::vector<Shape> shapes;
  const auto& arguments = node_.op->schema().arguments();
  for (size_t i = 0; i < arguments.size() && i < node_.args.size(); ++i) {
    // A number where a tensor is wanted is a tensor without dimensions: like None, it changes no shape.
    const Arg& arg = node_.args[i];
    if (IsTensor(*arguments[i].type()) && !IsNumberOrNone(graph_, arg)) shapes.push_back(TensorOf(arg));
  }
  return shapes;
}

absl::Span<const Arg> OpCall::Items(absl::string_view name) const {
  const Arg* arg = Find(name);
  if (arg == nullptr || arg->kind != Arg::Kind::kList) return {};
  return arg->items;
}

std::optional<std::vector<Shape>> OpCall::List(absl::string_view name) const {
  const absl::Span<const Arg> items = Items(name);
  if (items.empty()) return std::nullopt;
  std::vector<Shape> shapes;
  for (const Arg& item : items) shapes.push_back(TensorOf(item));
  return shapes;
}

Size OpCall::IntOf(const Arg& arg) const {
  if (arg.kind == Arg::Kind::kConst && arg.constant.isInt()) return arg.constant.toInt();
  if (arg.kind == Arg::Kind::kValue && graph_.value(arg.value).type.kind == Type::Kind::kInt) {
    return Size(SizeExpr::Value(arg.value, IsNatural(graph_, naturals_, arg)));
  }
  return Size();
}

Size OpCall::Int(absl::string_view name) const {
  const Arg* arg = Find(name);
  return arg == nullptr ? Size() : IntOf(*arg);
}

std::optional<std::vector<Size>> OpCall::Ints(absl::string_view name) const {
  const Arg* arg = Find(name);
  if (arg == nullptr) return std::nullopt;
  std::vector<Size> ints;
  if (arg->kind == Arg::Kind::kList) {
    for (const Arg& item : arg->items) ints.push_back(IntOf(item));
  } else if (arg->kind == Arg::Kind::kConst && arg->constant.isList()) {
    for (const c10::IValue& v : arg->constant.toListRef()) ints.push_back(IntOf(Arg::Const(v)));
  } else {
    ints.push_back(IntOf(*arg));
  }
  for (const Size& n : ints) {
    if (!n.expr()) return std::nullopt;
  }
  return ints;
}

std::optional<bool> OpCall::Flag(absl::string_view name) const {
  const Arg* arg = Find(name);
  if (arg == nullptr) return false;
  if (arg->kind != Arg::Kind::kConst || !arg->constant.isBool()) return std::nullopt;
  return arg->constant.toBool();
}

std::optional<std::string> OpCall::Text(absl::string_view name) const {
  const Arg* arg = Find(name);
  if (arg == nullptr || arg->kind != Arg::Kind::kConst || !arg->constant.isString()) return std::nullopt;
  return arg->constant.toStringRef();
}

std::optional<std::vector<double>> OpCall::Floats(absl::string_view name) const {
  const Arg* arg = Find(name);
  if (arg == nullptr || arg->kind != Arg::Kind::kConst || !arg->constant.isDoubleList()) return std::nullopt;
  return arg->constant.toDoubleVector();
}

std::optional<int64_t> OpCall::Dim(absl::string_view name, int64_t rank) const {
  const auto dim = ConstInt(name);
  return dim ? WrapDim(*dim, rank) : std::nullopt;
}

std::optional<std::vector<int64_t>> OpCall::Dims(absl::string_view name, int64_t rank) const {
  const auto ints = Ints(name);
  if (!ints) return std::nullopt;
  std::vector<int64_t> dims;
  for (const Size& n : *ints) {
    const auto dim = n.constant() ? WrapDim(*n.constant(), rank) : std::nullopt;
    if (!dim) return std::nullopt;
    dims.push_back(*dim);
  }
  return dims;
}

}  // namespace frametap
