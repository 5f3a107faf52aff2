// Which instruction sets the fused kernels are built for, and which one runs.
//
// The best one that the machine has, unless LAPLACE_CPU names another (one that it lacks is
// refused): portable (what every machine of the architecture has), avx2, avx512, avx512_bf16 (the
// same, with products of bfloat16).
// LAPLACE_KERNELS=portable turns the fused kernels off altogether.
//
// A kernel's file defines HWY_TARGET_INCLUDE and includes this before Highway's foreach_target.h.
#pragma once

// Before any of Highway's headers. Of x86's sets only three differ for us; without SVE, whose
// vectors cannot stand in arrays.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

// In the part of a kernel's file that is compiled once: defines getter<float>() and
// getter<BFloat16>(), which return what Floats() and Halves() of the instruction set in use do.
#define LAPLACE_DISPATCH(Table, getter)    \
  HWY_EXPORT(Floats);                      \
  HWY_EXPORT(Halves);                      \
  template <>                              \
  Table<float> getter() {                  \
    return HWY_DYNAMIC_DISPATCH(Floats)(); \
  }                                        \
  template <>                              \
  Table<BFloat16> getter() {               \
    return HWY_DYNAMIC_DISPATCH(Halves)(); \
  }

#include <string>
#include <vector>

namespace laplace::ops {

// The sets that this machine can run, best first, by their names for LAPLACE_CPU.
std::vector<std::string> available_instruction_sets();
// The one in use.
std::string instruction_set();
// Takes this set from now on; "" for the best. Not while kernels run. False when it is not
// available here.
bool use_instruction_set(const std::string& name);

// True where the set in use multiplies pairs of bfloat16 with float32 sums (avx512_bf16).
bool bfloat16_products();

// False under LAPLACE_KERNELS=portable, read once, and after set_fused_kernels(false).
bool fused_kernels();
void set_fused_kernels(bool on);  // for tests and benchmarks

}  // namespace laplace::ops
