// Size rules of the ops of neural networks: windows over images, resizing, padding, normalization, attention,
// recurrence.
#include <cmath>

#include "ir/ops/size_rules_call.h"

namespace frametap::ops {

// One entry for each of `n` dimensions; a list of one is meant for all.
static std::vector<Size> Spatial(const OpCall& call, const char* name, int64_t n, const Size& otherwise) {
  if (!call.Has(name)) return std::vector<Size>(n, otherwise);
  const auto ints = call.Ints(name);
  if (!ints || (ints->size() != 1 && static_cast<int64_t>(ints->size()) != n)) return std::vector<Size>(n);
  return ints->size() == 1 ? std::vector<Size>(n, ints->front()) : *ints;
}

// From the first to the last element that a window takes.
static Size Reach(const Size& kernel, const Size& dilation) { return dilation * (kernel - 1); }

// ---- Convolutions ----

Shape Conv(const OpCall& call) {
  const Shape x = call.First();
  const Shape w = call.Tensor("weight");
  const int64_t n = w.rank() - 2;
  if (n < 1 || (x.rank() != n + 1 && x.rank() != n + 2)) return Shape();
  const auto flag = call.Flag("transposed");
  if (!flag) return Shape();
  const bool transposed = call.Has("transposed") ? *flag : call.Has("output_padding");
  const auto mode = call.Text("padding");  // else a list
  const bool same = mode == "same";
  const std::vector<Size> stride = Spatial(call, "stride", n, 1);
  const std::vector<Size> padding = mode ? std::vector<Size>(n, 0) : Spatial(call, "padding", n, 0);
  const std::vector<Size> dilation = Spatial(call, "dilation", n, 1);
  const std::vector<Size> output_padding = Spatial(call, "output_padding", n, 0);
  // From no channels come none, however many the weight would make.
  const Size channels = transposed ? w[1] * call.Int("groups") * Min(w[0], 1) : w[0] * Min(w[1], 1);
  Shape result = x.Range(0, -n - 1).Then({channels});
  for (int64_t i = 0; i < n; ++i) {
    const Size in = x[i - n];
    const Size reach = Reach(w[i + 2], dilation[i]);
    if (same) {
      result = result.Then({in});  // the stride is 1
    } else if (transposed) {
      result = result.Then({(in - 1) * stride[i] - 2 * padding[i] + reach + output_padding[i] + 1});
    } else {
      result = result.Then({(in + 2 * padding[i] - reach - 1) / stride[i] + 1});
    }
  }
  return result;
}

// ---- Pools ----

static Shape Pool(const OpCall& call, int64_t n) {
  const Shape x = call.First();
  const auto ceil = call.Flag("ceil_mode");
  const auto strides = call.Ints("stride");
  if (!ceil || !strides) return Shape();
  const std::vector<Size> kernel = Spatial(call, "kernel_size", n, 1);
  const std::vector<Size> stride = strides->empty() ? kernel : Spatial(call, "stride", n, 1);
  const std::vector<Size> padding = Spatial(call, "padding", n, 0);
  const std::vector<Size> dilation = Spatial(call, "dilation", n, 1);
  Shape result = x.Range(0, -n);
  for (int64_t i = 0; i < n; ++i) {
    const Size in = x[i - n];
    const Size room = in + 2 * padding[i] - Reach(kernel[i], dilation[i]) - 1;
    // The last window may go beyond the end but must start before it: before the padding, too.
    const Size out =
        *ceil ? Min(CeilDiv(room, stride[i]) + 1, CeilDiv(in + padding[i], stride[i])) : room / stride[i] + 1;
    result = result.Then({out});
  }
  return result;
}

Shape Pool1d(const OpCall& call) { return Pool(call, 1); }
Shape Pool2d(const OpCall& call) { return Pool(call, 2); }
Shape Pool3d(const OpCall& call) { return Pool(call, 3); }

static Shape AdaptivePool(const OpCall& call, int64_t n) {
  return call.First().Range(0, -n).Then(Spatial(call, "output_size", n, Size()));
}

Shape AdaptivePool1d(const OpCall& call) { return AdaptivePool(call, 1); }
Shape AdaptivePool2d(const OpCall& call) { return AdaptivePool(call, 2); }
Shape AdaptivePool3d(const OpCall& call) { return AdaptivePool(call, 3); }

Shape Im2Col(const OpCall& call) {
  const Shape x = call.First();
  const std::vector<Size> kernel = Spatial(call, "kernel_size", 2, Size());
  const std::vector<Size> dilation = Spatial(call, "dilation", 2, Size());
  const std::vector<Size> padding = Spatial(call, "padding", 2, Size());
  const std::vector<Size> stride = Spatial(call, "stride", 2, Size());
  Size places = 1;
  for (int64_t i = 0; i < 2; ++i) {
    places = places * ((x[i - 2] + 2 * padding[i] - Reach(kernel[i], dilation[i]) - 1) / stride[i] + 1);
  }
  return x.Range(0, -3).Then({x[-3] * kernel[0] * kernel[1], places});
}

Shape Col2Im(const OpCall& call) {
  const Shape x = call.First();
  const std::vector<Size> kernel = Spatial(call, "kernel_size", 2, Size());
  return x.Range(0, -2).Then({x[-2] / (kernel[0] * kernel[1])}).Then(Spatial(call, "output_size", 2, Size()));
}

// ---- Resizing ----

Shape Upsample(const OpCall& call) {
  const Shape x = call.First();
  const int64_t n = x.rank() - 2;
  if (n < 1) return Shape();
  if (!call.IsNone("output_size")) return x.Range(0, 2).Then(Spatial(call, "output_size", n, Size()));
  const auto factors = call.Floats("scale_factors");
  if (!factors || static_cast<int64_t>(factors->size()) != n) return Shape();
  Shape result = x.Range(0, 2);
  for (int64_t i = 0; i < n; ++i) {
    // ATen multiplies in floating point and cuts. That is exact for a fraction whose denominator is a small power of two.
    double factor = (*factors)[i];
    int64_t denominator = 1;
    while (factor != std::floor(factor) && denominator < 1024) {
      factor *= 2;
      denominator *= 2;
    }
    if (!(factor >= 1 && factor <= 0x1p20) || factor != std::floor(factor)) return Shape();
    result = result.Then({x[i + 2] * static_cast<int64_t>(factor) / denominator});
  }
  return result;
}

Shape PixelShuffle(const OpCall& call) {
  const Shape x = call.First();
  const Size r = call.Int("upscale_factor");
  return x.Range(0, -3).Then({x[-3] / (r * r), x[-2] * r, x[-1] * r});
}

Shape GridSample(const OpCall& call) { return call.First().Range(0, 2).Then(call.Tensor("grid").Range(1, -1)); }

Shape AffineGrid(const OpCall& call) {
  const auto size = call.Ints("size");
  if (!size || size->size() < 3) return Shape();
  const Shape image = *size;
  return image.Without(1).Then({image.rank() - 2});
}

// From the last dimension on, two entries each; a negative one takes away.
Shape Pad(const OpCall& call) {
  Shape x = call.First();
  const auto pad = call.Ints(call.Has("pad") ? "pad" : "padding");
  if (!pad || pad->size() % 2 != 0) return Shape();
  for (size_t i = 0; 2 * i < pad->size(); ++i) {
    const int64_t dim = x.rank() - 1 - static_cast<int64_t>(i);
    x = x.With(dim, x[dim] + (*pad)[2 * i] + (*pad)[2 * i + 1]);
  }
  return x;
}

// ---- Normalization ----

Shape NativeLayerNorm(const OpCall& call) {
  Shape x = call.First();
  const auto normalized = call.Ints("normalized_shape");
  if (call.output() == 0) return x;
  if (!normalized) return Shape();
  for (int64_t i = 1; i <= static_cast<int64_t>(normalized->size()); ++i) x = x.With(-i, 1);
  return x;
}

Shape NativeGroupNorm(const OpCall& call) {
  return call.output() == 0 ? call.First() : Shape{call.Int("N"), call.Int("group")};
}

// The statistics are empty outside training.
Shape NativeBatchNorm(const OpCall& call) { return call.output() == 0 ? call.First() : Shape(); }

Shape Glu(const OpCall& call) {
  const Shape x = call.First();
  const auto dim = call.Dim("dim", x.rank());
  return dim ? x.With(*dim, x[*dim] / 2) : Shape();
}

Shape Embedding(const OpCall& call) {
  const Shape w = call.Tensor("weight");
  return w.rank() == 2 ? call.Tensor("indices").Then({w[1]}) : Shape();
}

// Batches are broadcast as in a matmul, unless there are no queries or the values are empty: then the batches of the
// query count. Grouped heads are repeated until there are as many as the query has.
Shape Attention(const OpCall& call) {
  const Shape q = call.Tensor("query");
  const Shape k = call.Tensor("key");
  const Shape v = call.Tensor("value");
  const auto grouped = call.Flag("enable_gqa");
  if (!grouped || q.rank() < 2 || k.rank() < 2 || v.rank() < 2) return Shape();
  Size full = Min(q[-2], 1);
  for (const Size& size : v.sizes()) full = Min(full, size);
  std::vector<Size> batch;
  for (int64_t from_end = call.rank(); from_end > 2; --from_end) {
    const bool heads = *grouped && from_end == 3;
    std::vector<Size> sizes;
    for (const Shape& s : {q, k, v}) {
      if (from_end <= s.rank() && !(heads && !sizes.empty())) sizes.push_back(s[-from_end]);
    }
    const Size all = BroadcastSize(sizes);
    // A result of more dimensions than the query has is not one of the exceptions.
    const Size own = from_end <= q.rank() && q.rank() == call.rank() ? q[-from_end] : all;
    batch.push_back(own + (all - own) * full);
  }
  return Shape(batch).Then({q[-2], v[-1]});
}

// ---- Recurrence ----

// Results: the sequence of outputs, then the states, each as it came in. Batches are broadcast. (Where oneDNN runs an
// lstm they are not: it writes out of bounds if they differ, so such a call has no right answer.)
Shape Recurrent(const OpCall& call) {
  const Shape x = call.First();
  const auto list = call.List("hx");
  const std::vector<Shape> states = list ? *list : std::vector<Shape>{call.Tensor("hx")};
  const auto batch_first = call.Flag("batch_first");
  const auto both_ways = call.Flag("bidirectional");
  if (!batch_first || !both_ways) return Shape();
  const int64_t batch_dim = *batch_first ? 0 : 1;
  std::vector<Size> batches = {x[batch_dim]};
  for (const Shape& s : states) batches.push_back(s[1]);
  const Size batch = BroadcastSize(batches);
  if (call.output() > 0) {
    return call.output() <= states.size() ? states[call.output() - 1].With(1, batch) : Shape();
  }
  return x.With(batch_dim, batch).With(2, states[0][2] * (*both_ways ? 2 : 1));
}

Shape RecurrentCell(const OpCall& call) {
  const auto list = call.List("hx");
  if (!list) return call.Tensor("hx");
  return call.output() < list->size() ? (*list)[call.output()] : Shape();
}

// ---- Spectra ----

Shape Fft(const OpCall& call) {
  const Shape x = call.First();
  const auto dim = call.Dim("dim", x.rank());
  if (!dim) return Shape();
  return call.IsNone("n") ? x : x.With(*dim, call.Int("n"));
}

Shape RealFft(const OpCall& call) {
  const Shape x = call.First();
  const auto dim = call.Dim("dim", x.rank());
  return dim ? x.With(*dim, (call.IsNone("n") ? x[*dim] : call.Int("n")) / 2 + 1) : Shape();
}

Shape InverseRealFft(const OpCall& call) {
  const Shape x = call.First();
  const auto dim = call.Dim("dim", x.rank());
  return dim ? x.With(*dim, call.IsNone("n") ? 2 * (x[*dim] - 1) : call.Int("n")) : Shape();
}

}  // namespace frametap::ops
