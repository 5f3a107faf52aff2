// swiglu's fused kernel: one pass over memory. See swiglu.h for the maths.
#pragma once

#include <cstdint>

#include "ops/simd/bfloat16.h"

namespace laplace::ops {

// gate_up and d_gate_up [rows,2F], y and dy [rows,F], all contiguous; T: float or BFloat16. Rows
// [begin,end) are worked on.
template <class T>
struct SwigluKernels {
  void (*forward)(int64_t F, const T* gate_up, T* y, int64_t begin, int64_t end);
  void (*backward)(int64_t F, const T* gate_up, const T* dy, T* d_gate_up, int64_t begin,
                   int64_t end);
};
// Those of the instruction set in use; T: float or BFloat16.
template <class T>
SwigluKernels<T> swiglu_kernels();

}  // namespace laplace::ops
