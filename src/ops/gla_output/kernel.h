// gla_output's fused kernel: one pass over memory. See gla_output.h for the maths.
#pragma once

#include <cstdint>

#include "ops/simd/head_rows.h"

namespace laplace::ops {

// T: float or BFloat16. aug_balance [H,dk]; norm [H,dv], a row a head (its tier's).
template <class T>
struct GlaOutputTokens {
  int64_t H, dk, dv;
  double eps;
  HeadRows<const T> o, q, k, v, g;
  const float *aug_balance, *norm;
  HeadRows<T> y;         // forward
  HeadRows<const T> dy;  // backward, as are those below
  HeadRows<T> d_o, d_q, d_k, d_v, d_g;
};

template <class T>
struct GlaOutputKernels {
  void (*forward)(const GlaOutputTokens<T>& a, int64_t begin, int64_t end);
  // Also sets d_aug [H,dk] and d_norm [H,dv] to the share of these tokens, in their order.
  void (*backward)(const GlaOutputTokens<T>& a, int64_t begin, int64_t end, float* d_aug,
                   float* d_norm);
};
// Those of the instruction set in use; T: float or BFloat16.
template <class T>
GlaOutputKernels<T> gla_output_kernels();

}  // namespace laplace::ops
