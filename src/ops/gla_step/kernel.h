// gla_step's fused kernel: one pass over a state. See gla_step.h for the maths.
#pragma once

#include <cstdint>

#include "ops/simd/bfloat16.h"

namespace laplace::ops {

// One head of one slot: q, k [dk], v, o [dv], S [dk,dv], all contiguous. fade: expm1(log_decay);
// scale: dk^-1/2. `sums` [dv] is overwritten. T: float or BFloat16.
template <class T>
using GlaStepKernel = void (*)(int64_t dk, int64_t dv, const T* q, const T* k, const T* v,
                               float fade, float scale, float* S, float* sums, T* o);
// That of the instruction set in use; T: float or BFloat16.
template <class T>
GlaStepKernel<T> gla_step_kernel();

}  // namespace laplace::ops
