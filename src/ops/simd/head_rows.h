// How the kernels see a tensor [B,T,H,d] that may be a slice of a fused projection.
#pragma once

#include <cstdint>

#include "ops/simd/bfloat16.h"

namespace laplace::ops {

// Element (token, head, i) is data[token * token_stride + head * head_stride + i]; tokens are
// counted over all sequences.
template <class T>
struct HeadRows {
  T* data = nullptr;
  int64_t token_stride = 0, head_stride = 0;

  T* at(int64_t token, int64_t head) const {
    return data + token * token_stride + head * head_stride;
  }
};

}  // namespace laplace::ops
