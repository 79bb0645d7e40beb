// A matrix product as a step of a kernel: the op matmul is one, attention and convolution consist of them.
#pragma once

#include <utility>

#include "backends/opencl/kernel.h"

namespace switchyard {

// Matrix z of a batch, z = outer·inner_batches + inner: element (row, column) lies at
// operand + outer·outer_stride + inner·inner_stride + row·row_stride + column·column_stride. Strides in elements.
struct Matrix {
  Operand operand{};
  sy_dtype dtype = SY_F32;
  int64_t row_stride = 0, column_stride = 1, outer_stride = 0, inner_stride = 0;
};
inline Matrix Transposed(Matrix m) {
  std::swap(m.row_stride, m.column_stride);
  return m;
}

enum { kBias = 1, kSavePreactivation = 2, kActivationGradient = 4, kResidual = 8, kAccumulate = 16 };  // as epilogue.cl

// c (m, n) = a (m, k)·b (k, n), and what `flags` add. c's column_stride is 1; bias is (inner_batches, n); preactivation
// and residual have c's dtype and its places.
struct Product {
  int64_t m = 1, n = 1, k = 1, batches = 1, inner_batches = 1;
  double alpha = 1;
  Matrix a, b, c;
  int32_t activation = SY_ACTIVATION_NONE;
  uint32_t flags = 0;
  Operand bias{}, preactivation{}, residual{};
  sy_dtype bias_dtype = SY_F32;
};
void AddProduct(Kernel& kernel, const Product& product);

}  // namespace switchyard
