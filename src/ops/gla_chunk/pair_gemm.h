// Products of small matrices of bfloat16 with float32 sums, for machines that multiply pairs of
// bfloat16 and add both to a float32 (VDPBF16PS): C = A B, or C += A B.
//
// A has rows of bfloat16. B has words, each a pair of bfloat16: word (p,j) holds B(2p,j) in its low
// half and B(2p+1,j) in its high half. An element's sum is taken in ascending order of p: its bits
// depend on nothing but the form that is in use.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/gla_chunk/part.h"

namespace laplace::ops {

// Rows of a block, and the columns that rows of B and C are padded to.
inline constexpr size_t kPairRows = 8, kPairColumns = 16;

struct PairProduct {
  size_t m, n, pairs;  // A [m,2*pairs], B [pairs,n] words, C [m,n]
  const uint16_t* a;
  size_t lda;  // in elements
  const uint32_t* b;
  size_t ldb;
  float* c;
  size_t ldc;
  bool add;
};

using PairGemm = void (*)(Part part, const PairProduct& product);

// The one in use; null where the machine does not multiply bfloat16 (float32 products are faster
// there than the plain form), and where LAPLACE_CPU names another instruction set.
PairGemm pair_gemm();
// From now on the plain form on any machine: for tests. Not while kernels run.
void use_plain_pair_gemm(bool on);

// One file an instruction set.
void pair_gemm_plain(Part part, const PairProduct& product);
void pair_gemm_avx512_bf16(Part part, const PairProduct& product);

}  // namespace laplace::ops
