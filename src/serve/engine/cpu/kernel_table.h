// The table of kernels of the instruction set that the including file is compiled for.
#pragma once

#include "serve/engine/cpu/gemm.h"
#include "serve/engine/cpu/int4_groups.h"
#include "serve/engine/cpu/kernels.h"

namespace laplace::cpu {
namespace {

template <class P>
constexpr Gemm gemm_of(void (*prepare)(const float*, int64_t, std::byte*, float*)) {
  Gemm g{};
  g.width = Tiles<P>::kWidth;
  g.step = P::kStep;
  g.step_bytes = P::kStepBytes;
  g.header_bytes = P::kHeader ? 4 * Tiles<P>::kWidth : 0;
  g.x_step_bytes = P::kStepX;
  g.group = P::kGroup;
  g.pack = P::pack;
  g.prepare = prepare;
  g.run = Tiles<P>::run;
  return g;
}

template <class Bf16, class Int8>
constexpr Kernels kernels_of(const char* name,
                             void (*prepare_bf16)(const float*, int64_t, std::byte*, float*)) {
  return {name,
          {gemm_of<Float32>(nullptr), gemm_of<Bf16>(prepare_bf16), gemm_of<Int8>(Int8::prepare),
           gemm_of<Int4>(nullptr)},
          layer_norm,
          conv,
          gla,
          largest,
          soften,
          sum_exp};
}

}  // namespace
}  // namespace laplace::cpu
