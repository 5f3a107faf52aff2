// What the machine can do at best, measured in the run that a figure stands beside.
#pragma once

#include <cstdint>

#include "serve/engine/cpu/cpu_model.h"

namespace laplace::cli {

struct MachineLimits {
  double read_bandwidth = 0;     // bytes a second, all threads reading memory
  double update_bandwidth = 0;   // bytes a second read and written, memory updated in place
  double gemm_rate = 0;          // flops a second at `rows` rows: the best of those below
  double own_gemm_rate = 0;      // the engine's product, weights in the cache
  double library_gemm_rate = 0;  // at::mm, float32, and bfloat16 for bfloat16 weights
};

// Bytes a second, read and written, of memory that is updated in place.
double update_bandwidth(int threads);

// Some seconds. `model` gives dtype and shapes.
MachineLimits measure_limits(const CpuModel& model, int64_t rows, int threads);

// Seconds that a step of `rows` rows (of `sequences` sequences, `heads` of them with logits) takes
// at least: the longer of its arithmetic and its memory traffic.
struct StepLimit {
  double compute_seconds = 0, memory_seconds = 0;
  double seconds() const {
    return compute_seconds > memory_seconds ? compute_seconds : memory_seconds;
  }
};
StepLimit step_limit(const CpuModel& model, const MachineLimits& limits, int64_t rows,
                     int64_t sequences, int64_t heads);

}  // namespace laplace::cli
