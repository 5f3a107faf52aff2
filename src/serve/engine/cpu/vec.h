// Vectors of floats for the kernels: as wide as the instruction set this file is compiled for.
//
// Each function exists for a vector and for one float, with the same bits: what does not fill a
// vector is computed one by one. Everything is local to the including file.
#pragma once

#include <cstddef>
#include <cstdint>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace laplace::cpu {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

using Floats [[gnu::vector_size(4 * kLanes)]] = float;
using Ints [[gnu::vector_size(4 * kLanes)]] = int32_t;
using Words [[gnu::vector_size(4 * kLanes)]] = uint32_t;

template <class V>
inline V load(const void* from) {
  V v;
  __builtin_memcpy(&v, from, sizeof(V));
  return v;
}

template <class V>
inline void store(void* to, const V& v) {
  __builtin_memcpy(to, &v, sizeof(V));
}

template <class To, class From>
inline To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}

// The vector of integers, and the integer, of a vector of floats and a float.
template <class T>
struct IntOf;
template <>
struct IntOf<Floats> {
  using type = Ints;
};
template <>
struct IntOf<float> {
  using type = int32_t;
};

// The value in all lanes. (T{} + value would be an addition: zero plus minus zero is not minus
// zero.)
template <class T>
inline T splat(float value);
template <>
inline float splat<float>(float value) {
  return value;
}
template <>
inline Floats splat<Floats>(float value) {
#if defined(__AVX512F__)
  return Floats(_mm512_set1_ps(value));
#elif defined(__AVX2__)
  return Floats(_mm256_set1_ps(value));
#else
  return Floats{value, value, value, value};
#endif
}

// a b + c, rounded once where the machine has that, twice where it has not.
inline float fma(float a, float b, float c) {
#if defined(__FP_FAST_FMAF)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

inline Floats fma(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__FP_FAST_FMAF)
  for (int i = 0; i < kLanes; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
#else
  return a * b + c;
#endif
}

// Halves are added to halves: a fixed order.
inline float sum(Floats v) {
  float lanes[kLanes];
  store(lanes, v);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// exp to about one unit in the last place, by 2^n e^r with |r| <= ln 2 / 2. Below e^-87 it is
// 1e-38; NaN stays NaN. The polynomial is that of Cephes (Moshier 1989), expf.
template <class T>
inline T exp(T x) {
  const T low = splat<T>(-87.3F), high = splat<T>(88.3F);
  x = x < low ? low : x;
  x = x > high ? high : x;
  const T round = splat<T>(12582912.0F);  // 1.5 * 2^23: adding it rounds to a whole number
  const T shifted = fma(x, splat<T>(1.44269504F), round);
  const T n = shifted - round;
  T r = fma(n, splat<T>(-0.693359375F), x);
  r = fma(n, splat<T>(2.12194440e-4F), r);
  T p = splat<T>(1.9875691500e-4F);
  p = fma(p, r, splat<T>(1.3981999507e-3F));
  p = fma(p, r, splat<T>(8.3334519073e-3F));
  p = fma(p, r, splat<T>(4.1665795894e-2F));
  p = fma(p, r, splat<T>(1.6666665459e-1F));
  p = fma(p, r, splat<T>(5.0000001201e-1F));
  p = fma(p, r * r, r) + 1.0F;
  using I = typename IntOf<T>::type;
  // The low bits of `shifted` are n: into the exponent with them. All of `round`'s are shifted out.
  const auto exponent = (bits_as<I>(shifted) << 23) + 0x3F800000;
  return p * bits_as<T>(exponent);
}

template <class T>
inline T sigmoid(T x) {
  return 1.0F / (1.0F + exp<T>(-x));
}

template <class T>
inline T silu(T x) {
  return x / (1.0F + exp<T>(-x));
}

// body(j, T{}) for j in [0, n): whole vectors, then one by one.
template <class Body>
inline void for_lanes(int64_t n, const Body& body) {
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) body(j, Floats{});
  for (; j < n; ++j) body(j, float{});
}

}  // namespace
}  // namespace laplace::cpu
