// layer_norm's fused kernel: rows of memory in, rows out. See layer_norm.h for the maths.
#pragma once

#include <cstdint>

#include "ops/simd/bfloat16.h"

namespace laplace::ops {

// All arrays are contiguous: x, y, dx, dy [rows,D], weight [D], mean and rstd [rows], float32.
// Rows [begin,end) are worked on; several threads may take rows of their own.
template <class X, class Y>
struct LayerNormRows {
  int64_t D;
  double eps;
  const X* x;
  const float* weight;
  float *mean, *rstd;  // written by forward, read by backward
  Y* y;                // forward
  const Y* dy;         // backward
  X* dx;               // backward
};

template <class X, class Y>
struct LayerNormKernels {
  void (*forward)(const LayerNormRows<X, Y>& a, int64_t begin, int64_t end);
  // Also sets dw [D] to the sum of dy * u over these rows, in their order.
  void (*backward)(const LayerNormRows<X, Y>& a, int64_t begin, int64_t end, float* dw);
};
// Those of the instruction set in use; X, Y: float or BFloat16.
template <class X, class Y>
LayerNormKernels<X, Y> layer_norm_kernels();

}  // namespace laplace::ops
