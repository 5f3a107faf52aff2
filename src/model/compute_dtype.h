// Where to compute, and in which dtype matrix products run when nobody says: bfloat16 where the
// machine multiplies it natively, float32 elsewhere (on a CPU without such instructions bfloat16 is
// several times slower).
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <string>
#include <string_view>

namespace laplace {

// "cpu", "cuda:1", or any device LibTorch knows and can allocate on; throws Error(kBadInput) for
// any other.
c10::Device open_device(const std::string& name);

// True for accelerators and for CPUs with avx512_bf16, AMX-BF16 or Arm's BF16 extension.
bool has_native_bfloat16(c10::Device device);

// "auto", "float32" or "bfloat16"; throws Error(kBadInput) for any other name.
at::ScalarType parse_compute_dtype(std::string_view name, c10::Device device);

}  // namespace laplace
