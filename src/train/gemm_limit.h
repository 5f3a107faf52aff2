// The machine's limit for a step: the time its matrix products alone take as plain at::mm, measured
// on the shapes and in the dtype of the run. Nothing can train faster with these products.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>

#include "model/config.h"

namespace laplace {

struct GemmLimit {
  double seconds_per_token = 0;
  double flops_per_second = 0;
  double recompute_seconds_per_token = 0;  // of the layers' forward products once more
};

// Forward (y = x Wᵀ) and backward (dx = dy W, dW = dyᵀ x) of every matrix and the head for `rows`
// tokens at once, best of two.
GemmLimit measure_gemm_limit(const ModelConfig& config, int64_t rows, at::ScalarType dtype,
                             c10::Device device);

}  // namespace laplace
