// See pair_gemm.h: the plain form, and which one is in use.
#include "ops/gla_chunk/pair_gemm.h"

#include <atomic>

#include "ops/gla_chunk/pair_gemm-inl.h"
#include "ops/simd/targets.h"

namespace laplace::ops {

namespace {

// A bfloat16 is the upper half of a float32. Both products are added one after the other, the low
// one first.
struct PlainDot {
  static constexpr size_t kLanes = 4;
  using Floats [[gnu::vector_size(4 * kLanes)]] = float;
  using Words [[gnu::vector_size(4 * kLanes)]] = uint32_t;

  static Words broadcast(const uint16_t* pair) { return Words{} + load_vector<uint32_t>(pair); }
  static Floats mac(Floats sums, Words x, Words w) {
    const auto as_floats = [](Words bits) { return load_vector<Floats>(&bits); };
    sums += as_floats(x << 16) * as_floats(w << 16);
    return sums + as_floats(x & 0xffff0000U) * as_floats(w & 0xffff0000U);
  }
};

std::atomic<bool>& plain_flag() {
  static std::atomic<bool> flag = false;
  return flag;
}

}  // namespace

void pair_gemm_plain(Part part, const PairProduct& product) {
  pair_product<PlainDot>(part, product);
}

PairGemm pair_gemm() {
  if (plain_flag().load(std::memory_order_relaxed)) return pair_gemm_plain;
#if defined(__x86_64__)
  if (bfloat16_products()) return pair_gemm_avx512_bf16;
#endif
  return nullptr;
}

void use_plain_pair_gemm(bool on) { plain_flag().store(on, std::memory_order_relaxed); }

}  // namespace laplace::ops
