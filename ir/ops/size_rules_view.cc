// Size rules of ops that arrange elements otherwise, take some of them, or make new ones: views, lists, indices,
// factories.
#include <algorithm>
#include <cstdlib>
#include <limits>
#include <utility>

#include "ir/ops/size_rules_call.h"

namespace frametap::ops {

// ---- Sizes that are given ----

// The sizes `entries` of `total` elements. One entry may be -1: what is left. A number of unknown sign may be that one.
static Shape Infer(const std::vector<Size>& entries, const Size& total) {
  const bool has_hole = std::any_of(entries.begin(), entries.end(), [](const Size& e) { return e.is(-1); });
  std::vector<Size> result;
  for (size_t i = 0; i < entries.size(); ++i) {
    const Size& entry = entries[i];
    if (entry.natural() || (has_hole && !entry.is(-1))) {
      result.push_back(entry);
      continue;
    }
    Size others = 1;
    for (size_t j = 0; j < entries.size(); ++j) {
      if (j != i) others = others * entries[j];
    }
    if (others.constant() ? *others.constant() > 0 : entry.is(-1)) {
      result.push_back((total / others).AsNatural());  // a call with a hole beside 0 fails
    } else if (others.constant() || entry.constant()) {
      return Shape();  // fails
    } else {
      // The entry, unless it is -1 and the others are positive: if one of them is the hole, they are negative.
      const Size left = total * Min(Max(others, 0), 1) / Max(others, 1);
      result.push_back(Max(entry, left).AsNatural());
    }
  }
  return result;
}

Shape View(const OpCall& call) {
  const auto entries = call.Ints(call.Has("shape") ? "shape" : "size");
  const Shape x = call.First();
  return entries && x.known() ? Infer(*entries, Product(x.sizes())) : Shape();
}

// -1 keeps a size.
Shape Expand(const OpCall& call) {
  const auto entries = call.Ints("size");
  const Shape x = call.First();
  if (!entries || !x.known()) return Shape();
  const int64_t added = static_cast<int64_t>(entries->size()) - x.rank();
  std::vector<Size> result;
  for (int64_t d = 0; d < static_cast<int64_t>(entries->size()); ++d) {
    const Size& entry = (*entries)[d];
    if (entry.natural() || d < added) {
      result.push_back(entry.AsNatural());
    } else {
      result.push_back(entry.is(-1) ? x[d - added] : (entry + IsNegative(entry) * (x[d - added] + 1)).AsNatural());
    }
  }
  return result;
}

Shape LikeOther(const OpCall& call) { return call.Tensor("other"); }

// No size is negative in a call that succeeds.
Shape Sized(const OpCall& call) {
  const auto sizes = call.Ints("size");
  return sizes ? Shape(*sizes) : Shape();
}

// ---- Order of dimensions ----

static Shape Permuted(const Shape& x, const std::vector<int64_t>& order) {
  std::vector<Size> sizes;
  for (const int64_t d : order) sizes.push_back(x[d]);
  return sizes;
}

static std::vector<int64_t> DimsInOrder(int64_t rank) {
  std::vector<int64_t> dims;
  for (int64_t d = 0; d < rank; ++d) dims.push_back(d);
  return dims;
}

Shape Permute(const OpCall& call) {
  const Shape x = call.First();
  const auto order = call.Dims("dims", x.rank());
  return order ? Permuted(x, *order) : Shape();
}

static Shape Swapped(const Shape& x, int64_t a, int64_t b) {
  if (x.rank() == 0) return x;
  return x.With(a, x[b]).With(b, x[a]);
}

Shape Transpose(const OpCall& call) {
  const Shape x = call.First();
  const bool axes = call.Has("axis0");
  const auto a = call.Dim(axes ? "axis0" : "dim0", x.rank());
  const auto b = call.Dim(axes ? "axis1" : "dim1", x.rank());
  return a && b ? Swapped(x, *a, *b) : Shape();
}

Shape TransposeLast(const OpCall& call) {
  const Shape x = call.First();
  return x.rank() < 2 ? x : Swapped(x, -2, -1);
}

Shape Reverse(const OpCall& call) {
  const Shape x = call.First();
  std::vector<int64_t> order = DimsInOrder(x.rank());
  std::reverse(order.begin(), order.end());
  return x.known() ? Permuted(x, order) : Shape();
}

Shape MoveDim(const OpCall& call) {
  const Shape x = call.First();
  const auto from = call.Dims("source", x.rank());
  const auto to = call.Dims("destination", x.rank());
  if (!from || !to || from->size() != to->size()) return Shape();
  if (x.rank() == 0) return x;
  std::vector<int64_t> order(x.rank(), -1);
  std::vector<int64_t> rest = DimsInOrder(x.rank());
  for (size_t i = 0; i < from->size(); ++i) {
    order[(*to)[i]] = (*from)[i];
    rest.erase(std::remove(rest.begin(), rest.end(), (*from)[i]), rest.end());
  }
  auto next = rest.begin();
  for (int64_t& d : order) {
    if (d < 0 && next == rest.end()) return Shape();
    if (d < 0) d = *next++;
  }
  return Permuted(x, order);
}

Shape Rot90(const OpCall& call) {
  const Shape x = call.First();
  const auto turns = call.ConstInt("k");
  const auto dims = call.Dims("dims", x.rank());
  if (!turns || !dims || dims->size() != 2) return Shape();
  return *turns % 2 == 0 ? x : Swapped(x, (*dims)[0], (*dims)[1]);
}

// ---- Number of dimensions ----

Shape Unsqueeze(const OpCall& call) {
  const Shape x = call.First();
  const auto dim = call.Dim("dim", x.rank() + 1);
  return dim ? x.Inserted(*dim, 1) : Shape();
}

// The rank of the result shows whether the dimensions were removed: all were, or none.
Shape Squeeze(const OpCall& call) {
  Shape x = call.First();
  if (call.rank() == x.rank()) return x;
  auto dims = call.Dims("dim", x.rank());
  if (!dims || call.rank() != x.rank() - static_cast<int64_t>(dims->size())) return Shape();
  std::sort(dims->rbegin(), dims->rend());
  for (const int64_t dim : *dims) x = x.Without(dim);
  return x;
}

Shape Flatten(const OpCall& call) {
  const Shape x = call.First();
  const auto start = call.Dim("start_dim", x.rank());
  const auto end = call.Dim("end_dim", x.rank());
  if (!start || !end) return Shape();
  if (x.rank() == 0) return {1};
  return x.Range(0, *start).Then({Product(x.Range(*start, *end + 1).sizes())}).Then(x.From(*end + 1));
}

Shape Unflatten(const OpCall& call) {
  const Shape x = call.First();
  const auto dim = call.Dim("dim", x.rank());
  const auto entries = call.Ints("sizes");
  if (!dim || !entries) return Shape();
  return x.Range(0, *dim).Then(Infer(*entries, x[*dim])).Then(x.From(*dim + 1));
}

Shape Ravel(const OpCall& call) {
  const Shape x = call.First();
  return x.known() ? Shape{Product(x.sizes())} : Shape();
}

Shape AtLeast1d(const OpCall& call) {
  const Shape x = call.First();
  return x.rank() == 0 ? Shape{1} : x;
}

// ---- Parts ----

Shape Select(const OpCall& call) {
  const Shape x = call.First();
  const auto dim = call.Dim("dim", x.rank());
  return dim ? x.Without(*dim) : Shape();
}

// A bound of a slice: a negative one counts from the end; then it is moved into the range.
static Size Clamp(const Size& bound, const Size& size) {
  if (bound.is(std::numeric_limits<int64_t>::max())) return size;
  if (bound.natural()) return Min(bound, size);
  if (bound.constant()) return Max(size + bound, 0);
  return Min(Max(bound + IsNegative(bound) * size, 0), size);
}

static Size SliceLength(const Size& size, const Size& start, const Size& end, const Size& step) {
  const Size from = Clamp(start, size);
  const Size to = Clamp(end, size);
  const Size length = to - from;
  return CeilDiv(from.is(0) || to == size ? length.AsNatural() : Max(length, 0), step);
}

Shape Slice(const OpCall& call) {
  const Shape x = call.First();
  const auto dim = call.Dim("dim", x.rank());
  if (!dim) return Shape();
  const Size start = call.IsNone("start") ? 0 : call.Int("start");
  const Size end = call.IsNone("end") ? std::numeric_limits<int64_t>::max() : call.Int("end");
  return x.With(*dim, SliceLength(x[*dim], start, end, call.Int("step")));
}

Shape Narrow(const OpCall& call) {
  const Shape x = call.First();
  const auto dim = call.Dim("dim", x.rank());
  return dim ? x.With(*dim, call.Int("length")) : Shape();
}

static Size DiagonalLength(const Size& rows, const Size& columns, int64_t offset) {
  return Max(offset >= 0 ? Min(rows, columns - offset) : Min(rows + offset, columns), 0);
}

Shape Diagonal(const OpCall& call) {
  const Shape x = call.First();
  const auto offset = call.ConstInt("offset");
  const auto a = call.Dim("dim1", x.rank());
  const auto b = call.Dim("dim2", x.rank());
  if (!offset || !a || !b) return Shape();
  return x.Without(std::max(*a, *b)).Without(std::min(*a, *b)).Then({DiagonalLength(x[*a], x[*b], *offset)});
}

Shape DiagEmbed(const OpCall& call) {
  const Shape x = call.First();
  const auto offset = call.ConstInt("offset");
  const auto a = call.Dim("dim1", x.rank() + 1);
  const auto b = call.Dim("dim2", x.rank() + 1);
  if (!offset || !a || !b) return Shape();
  const Size length = x[-1] + std::abs(*offset);
  return x.Range(0, -1).Inserted(std::min(*a, *b), length).Inserted(std::max(*a, *b), length);
}

Shape Diag(const OpCall& call) {
  const Shape x = call.First();
  const auto offset = call.ConstInt("diagonal");
  if (!offset) return Shape();
  if (x.rank() == 2) return {DiagonalLength(x[0], x[1], *offset)};
  const Size length = x[0] + std::abs(*offset);
  return {length, length};
}

Shape Unfold(const OpCall& call) {
  const Shape x = call.First();
  const auto dim = call.Dim("dimension", x.rank());
  if (!dim) return Shape();
  const Size size = call.Int("size");
  return x.With(*dim, (x[*dim] - size) / call.Int("step") + 1).Then({size});
}

Shape Diff(const OpCall& call) {
  const Shape x = call.First();
  const auto dim = call.Dim("dim", x.rank());
  if (!dim) return Shape();
  const Size n = call.Int("n");
  if (n.is(0)) return x;  // without what would go before and behind
  Size size = x[*dim];
  for (const char* more : {"prepend", "append"}) {
    if (call.IsNone(more)) continue;
    if (!n.constant()) return Shape();
    size = size + call.Tensor(more)[*dim];
  }
  return x.With(*dim, Max(size - n, 0));
}

Shape TopK(const OpCall& call) {
  const Shape x = call.First();
  const auto dim = call.Dim("dim", x.rank());
  if (!dim) return Shape();
  return x.rank() == 0 ? x : x.With(*dim, call.Int("k"));
}

Shape Multinomial(const OpCall& call) { return call.First().With(-1, call.Int("num_samples")); }

// ---- More of the same ----

static Shape Tiled(Shape x, std::vector<Size> times) {
  while (x.known() && x.rank() < static_cast<int64_t>(times.size())) x = x.Inserted(0, 1);
  while (static_cast<int64_t>(times.size()) < x.rank()) times.insert(times.begin(), 1);
  std::vector<Size> sizes;
  for (int64_t d = 0; d < x.rank(); ++d) sizes.push_back((x[d] * times[d]).AsNatural());
  return x.known() ? Shape(sizes) : Shape();
}

Shape Repeat(const OpCall& call) {
  const auto times = call.Ints(call.Has("repeats") ? "repeats" : "dims");
  return times ? Tiled(call.First(), *times) : Shape();
}

Shape RepeatInterleave(const OpCall& call) {
  const Shape x = call.First();
  const Size times = call.Int("repeats");
  if (call.IsNone("dim")) return x.known() ? Shape{Product(x.sizes()) * times} : Shape();
  const auto dim = call.Dim("dim", x.rank());
  return dim ? x.With(*dim, x[*dim] * times) : Shape();
}

// ---- Lists ----

// A tensor of one dimension beside others of more is empty, or the call fails: cat passes over it.
static Shape Joined(const std::vector<Shape>& shapes, int64_t dim, int64_t rank) {
  Shape result;
  Size sum = 0;
  for (const Shape& s : shapes) {
    if (s.rank() == 1 && rank > 1) continue;
    if (s.rank() != rank) return Shape();
    if (!result.known()) result = s;
    sum = sum + s[dim];
  }
  return result.With(dim, sum);
}

Shape Cat(const OpCall& call) {
  const auto shapes = call.List("tensors");
  const auto dim = call.Dim("dim", call.rank());
  return shapes && dim ? Joined(*shapes, *dim, call.rank()) : Shape();
}

Shape HStack(const OpCall& call) {
  const auto shapes = call.List("tensors");
  if (!shapes || shapes->front().rank() == 0) return Shape();
  return Joined(*shapes, shapes->front().rank() == 1 ? 0 : 1, call.rank());
}

Shape VStack(const OpCall& call) {
  auto shapes = call.List("tensors");
  if (!shapes) return Shape();
  for (Shape& s : *shapes) {
    if (s.rank() == 1) s = s.Inserted(0, 1);
  }
  return Joined(*shapes, 0, call.rank());
}

Shape Stack(const OpCall& call) {
  const auto shapes = call.List("tensors");
  if (!shapes) return Shape();
  const auto dim = call.Dim("dim", shapes->front().rank() + 1);
  return dim ? shapes->front().Inserted(*dim, static_cast<int64_t>(shapes->size())) : Shape();
}

static Size PieceLength(const Size& size, const Size& piece, int64_t item) { return Min(piece, size - piece * item); }

Shape Split(const OpCall& call) {
  const Shape x = call.First();
  const auto dim = call.Dim("dim", x.rank());
  return dim ? x.With(*dim, PieceLength(x[*dim], call.Int("split_size"), call.item())) : Shape();
}

Shape Chunk(const OpCall& call) {
  const Shape x = call.First();
  const auto dim = call.Dim("dim", x.rank());
  return dim ? x.With(*dim, PieceLength(x[*dim], CeilDiv(x[*dim], call.Int("chunks")), call.item())) : Shape();
}

Shape SplitWithSizes(const OpCall& call) {
  const Shape x = call.First();
  const auto dim = call.Dim("dim", x.rank());
  const auto sizes = call.Ints(call.Has("split_sizes") ? "split_sizes" : "split_size");
  if (!dim || !sizes || call.item() >= static_cast<int64_t>(sizes->size())) return Shape();
  return x.With(*dim, (*sizes)[call.item()]);
}

// The first pieces are larger by one, as many as are left over.
Shape TensorSplit(const OpCall& call) {
  const Shape x = call.First();
  const auto dim = call.Dim("dim", x.rank());
  const Size pieces = call.Int("sections");
  return dim ? x.With(*dim, (x[*dim] + pieces - call.item() - 1) / pieces) : Shape();
}

Shape TensorSplitAt(const OpCall& call) {
  const Shape x = call.First();
  const auto dim = call.Dim("dim", x.rank());
  const auto at = call.Ints("indices");
  if (!dim || !at || call.item() > static_cast<int64_t>(at->size())) return Shape();
  const Size start = call.item() == 0 ? 0 : (*at)[call.item() - 1];
  const bool last = call.item() == static_cast<int64_t>(at->size());
  const Size end = last ? std::numeric_limits<int64_t>::max() : (*at)[call.item()];
  return x.With(*dim, SliceLength(x[*dim], start, end, 1));
}

Shape BroadcastList(const OpCall& call) {
  const auto shapes = call.List("tensors");
  return shapes ? BroadcastShape(*shapes) : Shape();
}

Shape MeshGrid(const OpCall& call) {
  const auto shapes = call.List("tensors");
  if (!shapes) return Shape();
  std::vector<Size> sizes;
  for (const Shape& s : *shapes) sizes.push_back(s.known() ? Product(s.sizes()) : Size());
  if (call.Has("indexing") && sizes.size() > 1) {
    const auto indexing = call.Text("indexing");
    if (!indexing) return Shape();
    if (*indexing == "xy") std::swap(sizes[0], sizes[1]);
  }
  return sizes;
}

// ---- Indices ----

// A mask stands for the dimensions that it has itself. Their elements for which it is true come one after the other.
Shape IndexByMask(const OpCall& call, int64_t place) {
  const auto is_none = [](const Arg& item) { return item.kind == Arg::Kind::kConst && item.constant.isNone(); };
  const absl::Span<const Arg> items = call.Items("indices");
  if (std::count_if(items.begin(), items.end(), is_none) + 1 != static_cast<int64_t>(items.size())) return Shape();
  const int64_t masked = call.TensorOf(items[static_cast<size_t>(place)]).rank();
  if (masked < 1) return Shape();
  const Shape x = call.First();
  return x.Range(0, place).Then(Shape{Size()}).Then(x.From(place + masked));
}

// Integer indices are broadcast with each other. They take the place of the dimensions they index if these are
// neighbours, and come first otherwise.
Shape Index(const OpCall& call) {
  const Shape x = call.First();
  const absl::Span<const Arg> items = call.Items("indices");
  std::vector<Shape> indices;
  std::vector<int64_t> indexed;
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].kind == Arg::Kind::kConst && items[i].constant.isNone()) continue;
    const auto dtype = call.DtypeOf(items[i]);
    if (!dtype) return Shape();
    if (IsMask(*dtype)) return IndexByMask(call, static_cast<int64_t>(i));
    indices.push_back(call.TensorOf(items[i]));
    indexed.push_back(static_cast<int64_t>(i));
  }
  if (indexed.empty() || indexed.back() >= x.rank()) return Shape();
  const bool neighbours = indexed.back() - indexed.front() + 1 == static_cast<int64_t>(indexed.size());
  Shape rest = x;
  for (auto it = indexed.rbegin(); it != indexed.rend(); ++it) rest = rest.Without(*it);
  const int64_t place = neighbours ? indexed.front() : 0;
  return rest.Range(0, place).Then(BroadcastShape(indices)).Then(rest.From(place));
}

Shape IndexSelect(const OpCall& call) {
  const Shape x = call.First();
  const Shape index = call.Tensor("index");
  const auto dim = call.Dim("dim", x.rank());
  if (!dim || !index.known()) return Shape();
  return x.rank() == 0 ? x : x.With(*dim, Product(index.sizes()));
}

Shape LikeIndex(const OpCall& call) { return call.Tensor("index"); }

Shape TakeAlongDim(const OpCall& call) {
  const Shape x = call.First();
  const Shape index = call.Tensor("indices");
  if (call.IsNone("dim")) return index.known() ? Shape{Product(index.sizes())} : Shape();
  const auto dim = call.Dim("dim", x.rank());
  if (!dim || index.rank() != x.rank()) return Shape();
  return BroadcastShape({x, index}).With(*dim, index[*dim]);
}

Shape MaskedScatter(const OpCall& call) { return BroadcastShape({call.First(), call.Tensor("mask")}); }

Shape LikeSelf(const OpCall& call) { return call.Tensor("self"); }

Shape OneHot(const OpCall& call) {
  const Size classes = call.Int("num_classes");
  return classes.natural() ? call.First().Then({classes}) : Shape();  // -1 means as many as the elements determine
}

// ---- Elements seen otherwise ----

Shape ViewDtype(const OpCall& call) {
  const Shape x = call.First();
  const auto dtype = call.ConstInt("dtype");
  const auto before = call.Dtype("self");
  if (!dtype || !before) return Shape();
  const auto from = static_cast<int64_t>(c10::elementSize(*before));
  const auto to = static_cast<int64_t>(c10::elementSize(static_cast<c10::ScalarType>(*dtype)));
  return from == to ? x : x.With(-1, x[-1] * from / to);
}

Shape ViewAsReal(const OpCall& call) { return call.First().Then({2}); }
Shape ViewAsComplex(const OpCall& call) { return call.First().Range(0, -1); }

// ---- Factories ----

Shape Arange(const OpCall& call) {
  const Size start = call.Has("start") ? call.Int("start") : 0;
  const Size end = call.Int("end");
  const Size step = call.Has("step") ? call.Int("step") : 1;
  // A float cannot hold every int, so that a difference of floats may be another one.
  const auto dtype = call.ConstInt("dtype");
  const bool exact = call.IsNone("dtype") || dtype == static_cast<int64_t>(c10::ScalarType::Long);
  if (!exact && !start.is(0)) return Shape();
  if (step.is(1)) return {(end - start).AsNatural()};
  return {(0 - (start - end) / step).AsNatural()};  // rounds up, whatever the sign of the step
}

Shape Eye(const OpCall& call) { return {call.Int("n"), call.Int(call.Has("m") ? "m" : "n")}; }
Shape RandPerm(const OpCall& call) { return {call.Int("n")}; }
Shape LinSpace(const OpCall& call) { return {call.Int("steps")}; }
Shape Window(const OpCall& call) { return {call.Int("window_length")}; }

}  // namespace frametap::ops
