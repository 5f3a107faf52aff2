// bfloat16 as the kernels' files see it: 16 bits, same layout as c10::BFloat16, without LibTorch.
#pragma once

#include <cstdint>

namespace laplace::ops {

struct BFloat16 {
  uint16_t bits;
};

}  // namespace laplace::ops
