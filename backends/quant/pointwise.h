// Byte kernels that compute each element on its own: sums and products with broadcasting, and tables.
//   P1  Results lie as the larger operand does. Rows of an operand that is broadcast are read where they are.
// Not here: their schemas (operators.cc).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace frametap::quant {

at::Tensor AddBytes(const at::Tensor& a, double a_scale, int64_t a_zero, const at::Tensor& b, double b_scale,
                    int64_t b_zero, double scale, int64_t zero_point, int64_t qmin, int64_t qmax, bool relu);

// `product_scale`: the product of both scales.
at::Tensor MulBytes(const at::Tensor& a, int64_t a_zero, const at::Tensor& b, int64_t b_zero, double product_scale,
                    double scale, int64_t zero_point, int64_t qmin, int64_t qmax);

// `table`: 256 bytes.
at::Tensor LookUpBytes(const at::Tensor& q, const at::Tensor& table);

}  // namespace frametap::quant
