// The kernels for AVX2 and FMA: 8 floats a vector, tiles of 6 rows by 16 columns.
#include "serve/engine/cpu/int8_pairs.h"
#include "serve/engine/cpu/kernel_table.h"

namespace laplace::cpu {

const Kernels& avx2_kernels() {
  static constexpr Kernels kKernels = kernels_of<Bfloat16Widened, Int8Pairs>("avx2", nullptr);
  return kKernels;
}

}  // namespace laplace::cpu
