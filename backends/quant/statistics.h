// Statistics: the extremes of one float tensor during calibration, a histogram that grows with the data, and the means of
// its channels. The means of the errors of 8 bits in these channels are kept, too.
//   S1  Order and layout of the elements do not matter; exact zeros are counted apart (params/P2 makes them free of error).
//   S2  The histogram has 2048 bins, as PyTorch's and Caffe2's HistogramObserver. When a batch leaves the range, the
//       range grows and the old counts are spread over the new bins.
//   S3  The least-squares range minimises (clipping error of the histogram) + (count inside) * step^2 / 12. This is the
//       decomposition of Banner, Nahshan and Soudry, "Post training 4-bit quantization of convolutional networks for
//       rapid deployment" (2019). We use measured counts in place of a fitted distribution.
//   S4  Few samples have means by chance. The part that chance explains is taken off, as in the positive-part estimator of
//       James and Stein; one row alone has no means.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "backends/quant/params.h"

namespace frametap::quant {

class Statistics {
 public:
  void Add(const at::Tensor& tensor);      // f32; an empty tensor adds nothing
  void Add(const Statistics& other);       // as if this had seen the other's tensors
  void AddRange(const Statistics& other);  // … and leaves out what it knows of channels
  // Adds to the means along dimension `dim`, which is counted from the last one: -1. The tensor was given to Add as well.
  void AddChannels(const at::Tensor& tensor, int64_t dim) { AddTo(&channels_, ChannelsOf(tensor, dim)); }
  // The same for the tensor less its dequantized bytes. Such a tensor need not have been given to Add.
  void AddErrors(const at::Tensor& errors, int64_t dim) { AddTo(&errors_, ChannelsOf(errors, dim)); }
  bool empty() const { return elements_ == 0; }
  bool finite() const { return finite_; }  // no NaN and no infinity was seen
  int64_t elements() const { return elements_; }
  Range MinMax() const { return {min_, max_}; }
  Range LeastSquares(int64_t levels) const;  // S3; levels = qmax - qmin
  // S4. Returns f32[channels], or an undefined tensor where the means are not known or chance.
  at::Tensor ChannelMeans(int64_t dim) const { return MeansOf(channels_, dim); }
  at::Tensor ErrorMeans(int64_t dim) const { return MeansOf(errors_, dim); }

 private:
  // A histogram: counts of equal steps from `lo` to `hi`.
  struct Histogram {
    double lo = 0, hi = 0;
    std::vector<double> bins;  // none: nothing was seen
  };
  void Cover(double lo, double hi);  // grows the histogram's range
  void Spread(const Histogram& from);

  struct Channels {
    int64_t dim;
    double rows;
    double squares;   // the sum of the squares of all elements
    at::Tensor sums;  // f64[channels]; undefined: tensors of different numbers of channels were seen
  };
  static std::optional<Channels> ChannelsOf(const at::Tensor& tensor, int64_t dim);
  static void AddTo(std::vector<Channels>* all, const std::optional<Channels>& more);
  at::Tensor MeansOf(const std::vector<Channels>& all, int64_t dim) const;

  int64_t elements_ = 0;
  bool finite_ = true;
  double min_ = 0;
  double max_ = 0;
  double zeros_ = 0;
  Histogram histogram_;
  std::vector<Channels> channels_, errors_;  // one or two of each
};

}  // namespace frametap::quant
