// gla_chunk's fused kernel: one head of one sequence, chunk after chunk, all products in L1 and L2.
// See gla_chunk.h for the maths.
//
// The chunks are the kernel's own, of at most kGlaMaxChunk tokens: any chunk size gives the same
// result up to rounding, and this one suits the caches of a CPU. All arithmetic is float32, but for
// pair_kernel.cpp, which multiplies bfloat16 where the machine does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/simd/head_rows.h"

namespace laplace::ops {

inline constexpr int64_t kGlaMaxChunk = 64;

// The powers of one head's decay that chunks of up to C tokens need, worked out in float64.
struct GlaDecay {
  GlaDecay(float log_decay, int64_t dk, int64_t C);

  float fade(int64_t length) const { return fades[std::size_t(length)]; }

  std::vector<float> within;  // [3C]  within[C-1+j-i] = dk^-1/2 lambda^{i-j}, zero for j > i
  std::vector<float> read;    // [C]   dk^-1/2 lambda^{i+1}
  std::vector<float> powers;  // [C]   lambda^n
  std::vector<float> fades;   // [C+1] lambda^n - 1
};

// One call's tensors. T: float or BFloat16. States are [B,H,dk,dv], chunk_states [B,H,N,dk,dv] with
// N = ceil(T/C), all float32.
template <class X>
struct GlaChunkHeads {
  int64_t T, H, dk, dv, C, N;
  const GlaDecay* decay;  // [H]
  HeadRows<const X> q, k, v;
  const uint8_t* doc_start;  // [B,T], may be null
  // Forward.
  const float* state;  // may be null
  HeadRows<X> o;
  float* chunk_states;
  float* state_out;
  // Backward. d_q, d_k and d_v are added to when `accumulate` is set.
  HeadRows<const X> d_o;
  const float* d_state_out;  // may be null
  HeadRows<X> d_q, d_k, d_v;
  bool accumulate;
  float* d_state;
};

// Head h of sequence b. Several threads may take heads of their own.
template <class X>
struct GlaChunkKernels {
  void (*forward)(const GlaChunkHeads<X>& a, int64_t b, int64_t h);
  void (*backward)(const GlaChunkHeads<X>& a, int64_t b, int64_t h);
};
// Those of the instruction set in use; X: float or BFloat16.
template <class X>
GlaChunkKernels<X> gla_chunk_kernels();

// Those that multiply pairs of bfloat16 by pair_gemm(), for heads that rows_are_words() holds for.
GlaChunkKernels<BFloat16> gla_chunk_pair_kernels();
// Whether rows of q, k, v (and d_o, where there is one) are whole words of two elements.
bool rows_are_words(const GlaChunkHeads<BFloat16>& a);

}  // namespace laplace::ops
