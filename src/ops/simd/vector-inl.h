// Vectors of float32 for the fused kernels, whatever the instruction set: loads and stores of
// float32 and bfloat16 with a tail, exp and sigmoid. Included once per instruction set (Highway's
// foreach_target), hence the unusual guard.
#if defined(LAPLACE_OPS_SIMD_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LAPLACE_OPS_SIMD_VECTOR_INL_H_
#undef LAPLACE_OPS_SIMD_VECTOR_INL_H_
#else
#define LAPLACE_OPS_SIMD_VECTOR_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ops/simd/bfloat16.h"

HWY_BEFORE_NAMESPACE();
namespace laplace::ops::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using I32 = hn::RebindToSigned<F32>;
using U32 = hn::RebindToUnsigned<F32>;
using U16 = hn::Rebind<uint16_t, F32>;
using Vec = hn::Vec<F32>;

inline constexpr size_t kLanes = HWY_LANES(float);  // no scalable vectors here

HWY_INLINE Vec splat(float x) { return hn::Set(F32(), x); }

HWY_INLINE Vec load_full(const float* p) { return hn::LoadU(F32(), p); }
HWY_INLINE Vec load_full(const BFloat16* p) {
  const auto half = hn::LoadU(U16(), reinterpret_cast<const uint16_t*>(p));
  return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), half)));
}

HWY_INLINE void store_full(Vec v, float* p) { hn::StoreU(v, F32(), p); }
// As bfloat16 in the low half of each word. Rounds to nearest, ties to even; NaN stays NaN.
HWY_INLINE hn::Vec<U32> bfloat16_words(Vec v) {
  const U32 u32;
  const auto bits = hn::BitCast(u32, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u32, 1));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(u32, 0x7fff)), odd);
  const auto nan = hn::RebindMask(u32, hn::IsNaN(v));
  const auto kept = hn::IfThenElse(nan, hn::Set(u32, 0x7fc00000), rounded);
  return hn::ShiftRight<16>(kept);
}
HWY_INLINE void store_full(Vec v, BFloat16* p) {
  const auto half = hn::BitCast(I32(), bfloat16_words(v));
  hn::StoreU(hn::DemoteTo(U16(), half), U16(), reinterpret_cast<uint16_t*>(p));
}

// The first `n` <= kLanes elements; the others load as zero and are not stored.
template <class T>
HWY_INLINE Vec load(const T* p, size_t n) {
  if (HWY_LIKELY(n >= kLanes)) return load_full(p);
  T buffer[kLanes] = {};
  std::memcpy(buffer, p, n * sizeof(T));
  return load_full(buffer);
}
template <class T>
HWY_INLINE void store(Vec v, T* p, size_t n) {
  if (HWY_LIKELY(n >= kLanes)) {
    store_full(v, p);
    return;
  }
  T buffer[kLanes];
  store_full(v, buffer);
  std::memcpy(p, buffer, n * sizeof(T));
}

// Asks for n elements to come into L2: what a kernel reads soon, from more places than the
// processor follows by itself.
template <class T>
HWY_INLINE void fetch_ahead(const T* p, size_t n) {
  constexpr size_t kLine = 64 / sizeof(T);
  for (size_t i = 0; i < n; i += kLine) __builtin_prefetch(p + i, 0, 2);
}

// One element as float32.
HWY_INLINE float as_float(float x) { return x; }
HWY_INLINE float as_float(BFloat16 x) {
  const uint32_t bits = uint32_t{x.bits} << 16;
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The lanes from the n-th on as zeros.
HWY_INLINE Vec first_lanes(Vec v, size_t n) {
  if (HWY_LIKELY(n >= kLanes)) return v;
  return hn::IfThenElseZero(hn::FirstN(F32(), n), v);
}

// The sums over i < n of kSums terms a lane: add(i, left, sums) adds those of the lanes from i on,
// of which `left` are wanted. Four vectors of sums in turn, so that an addition does not wait for
// the one before; they are added in a fixed order.
template <int kSums, class Add>
HWY_INLINE void sum_over(size_t n, Vec* sums, const Add& add) {
  constexpr size_t kTurns = 4;
  Vec turns[kTurns][kSums];
  for (auto& turn : turns) {
    for (Vec& sum : turn) sum = splat(0);
  }
  size_t i = 0;
  for (; i + kTurns * kLanes <= n; i += kTurns * kLanes) {
    for (size_t t = 0; t < kTurns; ++t) add(i + t * kLanes, kLanes, turns[t]);
  }
  for (; i < n; i += kLanes) add(i, n - i, turns[0]);
  for (int s = 0; s < kSums; ++s) {
    sums[s] = hn::Add(hn::Add(turns[0][s], turns[1][s]), hn::Add(turns[2][s], turns[3][s]));
  }
}

HWY_INLINE float sum_lanes(Vec v) { return hn::GetLane(hn::SumOfLanes(F32(), v)); }

// exp(x), relative error below 1e-7; x is clamped to [-87.3, 88.3], so that neither infinity nor a
// denormal comes out. exp(x) = 2^n exp(r) with r = x - n ln 2, |r| <= ln 2 / 2, and a polynomial
// 1 + r + r^2 (...) of degree 6, fitted for the smallest largest relative error.
HWY_INLINE Vec exp_vec(Vec x) {
  x = hn::Min(hn::Max(x, splat(-87.3f)), splat(88.3f));
  // Beside 1.5 * 2^23 a float32 has no fraction: n stands in the low bits.
  const Vec shift = splat(12582912.0f);
  const Vec shifted = hn::MulAdd(x, splat(1.44269504088896341f), shift);
  const Vec n = hn::Sub(shifted, shift);
  Vec r = hn::NegMulAdd(n, splat(0.693145751953125f), x);
  r = hn::NegMulAdd(n, splat(1.428606765330187e-6f), r);
  Vec p = hn::MulAdd(r, splat(1.38145383e-3f), splat(8.36874545e-3f));
  p = hn::MulAdd(p, r, splat(4.16683890e-2f));
  p = hn::MulAdd(p, r, splat(1.66665211e-1f));
  p = hn::MulAdd(p, r, splat(4.99999940e-1f));
  p = hn::MulAdd(p, r, splat(1.0f));
  p = hn::MulAdd(p, r, splat(1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(I32(), shifted));
  return hn::BitCast(F32(), hn::Add(hn::BitCast(I32(), p), exponent));
}

// 1 / d for d >= 1, relative error below 2e-7: an estimate and one step of Newton's method where
// that is faster than a division.
HWY_INLINE Vec reciprocal_vec(Vec d) {
#if HWY_ARCH_X86
  const Vec y = hn::ApproximateReciprocal(d);
  return hn::Mul(y, hn::NegMulAdd(d, y, splat(2.0f)));
#else
  return hn::Div(splat(1.0f), d);
#endif
}

// 1 / (1 + exp(-x)), relative error below 5e-7 (2e-7 for |x| < 10). As exp_vec with -x worked into
// the constants, one step of reduction and a polynomial of degree 5 in -r: its error is of the size
// that the sum with 1 rounds away. The complement 1 - value has a relative error of that size too:
// where the value is all but 1, their difference would be noise.
struct Sigmoid {
  Vec value, complement;
};
HWY_INLINE Sigmoid sigmoid_and_complement(Vec x) {
  x = hn::Min(hn::Max(x, splat(-87.0f)), splat(87.3f));  // 1 / exp(87) is no denormal
  const Vec shift = splat(12582912.0f);
  const Vec shifted = hn::MulAdd(x, splat(-1.44269504088896341f), shift);
  const Vec n = hn::Sub(shifted, shift);
  const Vec r = hn::MulAdd(n, splat(0.693147180559945f), x);
  Vec p = hn::MulAdd(r, splat(-8.31252e-3f), splat(4.189016e-2f));
  p = hn::MulAdd(p, r, splat(-1.6667115e-1f));
  p = hn::MulAdd(p, r, splat(4.9999231e-1f));
  p = hn::MulAdd(p, r, splat(-1.0f));
  p = hn::MulAdd(p, r, splat(1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(I32(), shifted));
  const Vec e = hn::BitCast(F32(), hn::Add(hn::BitCast(I32(), p), exponent));
  const Vec value = reciprocal_vec(hn::Add(splat(1.0f), e));
  return {value, hn::Mul(e, value)};
}
HWY_INLINE Vec sigmoid_vec(Vec x) { return sigmoid_and_complement(x).value; }

}  // namespace laplace::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // guard
