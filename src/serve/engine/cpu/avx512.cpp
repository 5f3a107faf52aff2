// The kernels for AVX-512 (F, BW, DQ, VL): 16 floats a vector, tiles of 6 rows by 64 columns.
#include "serve/engine/cpu/int8_pairs.h"
#include "serve/engine/cpu/kernel_table.h"

namespace laplace::cpu {

const Kernels& avx512_kernels() {
  static constexpr Kernels kKernels = kernels_of<Bfloat16Widened, Int8Pairs>("avx512", nullptr);
  return kKernels;
}

}  // namespace laplace::cpu
