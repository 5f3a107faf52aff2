// pair_gemm by VDPBF16PS.
#include <immintrin.h>

#include "ops/gla_chunk/pair_gemm-inl.h"

namespace laplace::ops {

namespace {

struct Avx512Dot {
  static constexpr size_t kLanes = 16;
  using Floats = __m512;
  using Words = __m512i;

  static Words broadcast(const uint16_t* pair) {
    return _mm512_set1_epi32(load_vector<int32_t>(pair));
  }
  static Floats mac(Floats sums, Words x, Words w) {
    return _mm512_dpbf16_ps(sums, load_vector<__m512bh>(&x), load_vector<__m512bh>(&w));
  }
};

}  // namespace

void pair_gemm_avx512_bf16(Part part, const PairProduct& product) {
  pair_product<Avx512Dot>(part, product);
}

}  // namespace laplace::ops
