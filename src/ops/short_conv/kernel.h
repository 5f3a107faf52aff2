// short_conv's fused kernel. See short_conv.h for the maths.
//
// A block of tokens is walked in groups of four, their rows from the first channel to the last: so
// memory is read in order, and the inputs of a group stay in registers.
#pragma once

#include <cstdint>

#include "ops/simd/bfloat16.h"

namespace laplace::ops {

inline constexpr int64_t kConvMaxWidth = 4;      // wider ones take the portable form
inline constexpr int64_t kConvBlockTokens = 64;  // tokens of a block; also the unit of dw's sums

// x, y, dy, dx [B,T,D] contiguous, X: float or BFloat16. weight [k,D] (transposed: channels are
// contiguous). window, d_window_out and doc_start may be null.
template <class X>
struct ShortConvBlocks {
  int64_t T, D, k;
  const X* x;
  const float* weight;
  const float* window;       // [B,k,D]
  const uint8_t* doc_start;  // [B,T]
  X* y;                      // forward
  float* window_out;         // forward, [B,k,D]
  const X* dy;               // backward, as are those below
  const float* d_window_out;
  X* dx;
  float* d_window;
};

// Tokens [begin,end) of sequence b, at most kConvBlockTokens. Several threads may take blocks of
// their own.
template <class X>
struct ShortConvKernels {
  void (*forward)(const ShortConvBlocks<X>& a, int64_t b, int64_t begin, int64_t end);
  // Also sets dw [k,D] to these tokens' share.
  void (*backward)(const ShortConvBlocks<X>& a, int64_t b, int64_t begin, int64_t end, float* dw);
};
// Those of the instruction set in use; X: float or BFloat16.
template <class X>
ShortConvKernels<X> short_conv_kernels();

}  // namespace laplace::ops
