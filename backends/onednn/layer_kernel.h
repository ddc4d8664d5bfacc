// LayerKernel: a linear layer or a convolution, ready to run on inputs of any size.
//   K1  A primitive belongs to a size of the input and a number of threads (torch's). At most kMaxSizes are kept; the one
//       that was used longest ago goes first.
//   K2  Weights are packed once for each layout that a primitive asks for, nearly always one.
//   K3  A run allocates its result, and nothing else once its size has been met. Runs of several threads share primitives
//       and weights, and neither memory objects nor scratchpads; all kernels of a thread share one scratchpad.
//   K4  Weights, scales and bias are read, never written; they must not change.
//   K5  A transposed convolution that tiles its result may run as a linear layer of its pixels (tiles.h), some rows of an image
//       at a time.
//   K6  Layers on float32 may run by a kernel of ours (wide_linear.h), which has no primitives. It packs the weights when it
//       is first needed.
// Not here: the ops that become one (backends/quant/lower.cc); its description for oneDNN (primitive.h).
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "backends/onednn/layer.h"

struct dnnl_memory;
struct dnnl_memory_desc;

namespace frametap::onednn {

struct KernelCounts {
  int64_t sizes = 0;    // for which there are primitives
  int64_t made = 0;     // primitives, in all
  int64_t dropped = 0;  // K1
};

class WideLinear;

class LayerKernel {
 public:
  static constexpr size_t kMaxSizes = 16;

  // Throws c10::Error if the tensors do not fit each other.
  explicit LayerKernel(Layer layer);
  ~LayerKernel();
  LayerKernel(const LayerKernel&) = delete;
  LayerKernel& operator=(const LayerKernel&) = delete;

  const Layer& layer() const { return layer_; }  // Folded
  KernelCounts counts() const;

  // Makes what runs on inputs of these sizes need.
  void Prepare(at::IntArrayRef sizes);

  // `x`: [..., inputs], or [images, inputs, axes of an image...], or such an image alone; uint8, or f32 for a layer on
  // floats. `addend`: for layers that take one, f32 with the result's sizes. Any thread.
  at::Tensor Run(const at::Tensor& x, const at::Tensor* addend = nullptr);
  // For a linear layer without an addend: rows that are dense, of the types that the layer reads and gives.
  void RunRows(const void* x, int64_t rows, void* result);
  // The result is written into `accumulator` if it is dense and channels_last, else into a copy of it, and returned.
  at::Tensor RunInto(const at::Tensor& x, const at::Tensor& accumulator);

 private:
  struct Sized;
  struct Binding;
  struct Operands;

  Extent ExtentOf(at::IntArrayRef sizes) const;
  void Execute(const Extent& extent, const void* x, const void* addend, void* result);
  void ExecutePixels(const Extent& extent, const void* x, void* result);
  const WideLinear* WideFor(const Extent& extent);                 // null: a primitive runs
  std::shared_ptr<Sized> Find(const Extent& extent, int threads);  // under mutex_
  std::shared_ptr<Sized> Make(const Extent& extent, int threads);
  std::shared_ptr<dnnl_memory> Packed(const dnnl_memory_desc* wanted);
  std::unique_ptr<Binding> Bind(const Sized& sized) const;

  Layer layer_;
  const std::unique_ptr<Operands> operands_;
  const std::unique_ptr<LayerKernel> pixels_;  // K5; null for other layers
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Sized>> sized_;  // the one used last first
  std::vector<std::weak_ptr<dnnl_memory>> packed_;
  std::unique_ptr<const WideLinear> wide_;  // K6; made once, under mutex_
  int64_t made_ = 0, dropped_ = 0;
};

}  // namespace frametap::onednn
