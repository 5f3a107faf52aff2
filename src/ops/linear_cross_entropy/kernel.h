// linear_cross_entropy's fused kernel: from a block of logits to losses and, in place, to the
// gradient of the mean loss by the logits.
#pragma once

#include <cstdint>

#include "ops/simd/bfloat16.h"

namespace laplace::ops {

// Rows [begin,end) of logits [rows,V]: losses[row] = logsumexp(row) - row[target[row]], and with
// `gradients` row = (softmax(row) - onehot(target)) * scale. `exps` [V] is overwritten. T: float or
// BFloat16. The sums have a fixed order.
template <class T>
using CrossEntropyKernel = void (*)(int64_t V, T* logits, const int64_t* target, float scale,
                                    bool gradients, float* exps, double* losses, int64_t begin,
                                    int64_t end);
// That of the instruction set in use; T: float or BFloat16.
template <class T>
CrossEntropyKernel<T> cross_entropy_kernel();

}  // namespace laplace::ops
