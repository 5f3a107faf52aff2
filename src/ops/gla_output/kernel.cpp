// See kernel.h.
#include "ops/gla_output/kernel.h"

#include <algorithm>
#include <cmath>

#include "ops/simd/targets.h"
//
#include <hwy/aligned_allocator.h>
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/gla_output/kernel.cpp"
#include <hwy/foreach_target.h>

#include "ops/simd/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace laplace::ops::HWY_NAMESPACE {

// p = sigmoid( q . (a * k) )
template <class T>
HWY_INLINE float balance(const T* q, const T* k, const float* a, size_t dk) {
  Vec dot = splat(0);
  for (size_t i = 0; i < dk; i += kLanes) {
    const Vec qk = hn::Mul(load(q + i, dk - i), load(k + i, dk - i));
    dot = hn::MulAdd(qk, load(a + i, dk - i), dot);
  }
  return 1.0f / (1.0f + std::exp(-sum_lanes(dot)));
}

// z = o + p v, and 1 / sqrt(mean(z^2) + eps).
template <class T>
HWY_INLINE float rstd_of(const T* o, const T* v, float p, size_t dv, double eps) {
  Vec squares = splat(0);
  for (size_t i = 0; i < dv; i += kLanes) {
    const Vec z = hn::MulAdd(load(v + i, dv - i), splat(p), load(o + i, dv - i));
    squares = hn::MulAdd(z, z, squares);
  }
  return float(1.0 / std::sqrt(double(sum_lanes(squares)) / double(dv) + eps));
}

template <class T>
HWY_INLINE void forward_head(const GlaOutputTokens<T>& a, int64_t token, int64_t h) {
  const size_t dk = size_t(a.dk), dv = size_t(a.dv);
  const T *const o = a.o.at(token, h), *const v = a.v.at(token, h), *const g = a.g.at(token, h);
  const float* const w = a.norm + h * a.dv;
  T* const y = a.y.at(token, h);
  const float p = balance(a.q.at(token, h), a.k.at(token, h), a.aug_balance + h * a.dk, dk);
  const Vec rstd = splat(rstd_of(o, v, p, dv, a.eps));
  for (size_t i = 0; i < dv; i += kLanes) {
    const Vec z = hn::MulAdd(load(v + i, dv - i), splat(p), load(o + i, dv - i));
    const Vec gate = load(g + i, dv - i);
    const Vec silu = hn::Mul(gate, sigmoid_vec(gate));
    store(hn::Mul(hn::Mul(silu, z), hn::Mul(rstd, load(w + i, dv - i))), y + i, dv - i);
  }
}

// The maths is that of portable.cpp. du and u pass through memory between the two loops.
template <class T>
HWY_INLINE void backward_head(const GlaOutputTokens<T>& a, int64_t token, int64_t h, float* d_aug,
                              float* d_norm, float* du_row, float* u_row) {
  const size_t dk = size_t(a.dk), dv = size_t(a.dv);
  const T *const q = a.q.at(token, h), *const k = a.k.at(token, h);
  const T *const o = a.o.at(token, h), *const v = a.v.at(token, h), *const g = a.g.at(token, h);
  const T* const dy = a.dy.at(token, h);
  const float* const w = a.norm + h * a.dv;
  const float* const balance_row = a.aug_balance + h * a.dk;
  const float p = balance(q, k, balance_row, dk);
  const float rstd = rstd_of(o, v, p, dv, a.eps);

  Vec along = splat(0);
  for (size_t i = 0; i < dv; i += kLanes) {
    const size_t n = dv - i;
    const Vec z = hn::MulAdd(load(v + i, n), splat(p), load(o + i, n));
    const Vec u = hn::Mul(z, splat(rstd));
    const Vec gate = load(g + i, n), d = load(dy + i, n), weight = load(w + i, n);
    const Vec s = sigmoid_vec(gate);
    const Vec silu = hn::Mul(gate, s);
    const Vec d_silu = hn::MulAdd(silu, hn::Sub(splat(1), s), s);
    store(hn::Mul(hn::Mul(d, u), hn::Mul(weight, d_silu)), a.d_g.at(token, h) + i, n);
    const Vec dn = hn::Mul(d, silu);
    store(hn::MulAdd(dn, u, load(d_norm + i, n)), d_norm + i, n);
    const Vec du = hn::Mul(dn, weight);
    along = hn::MulAdd(du, u, along);
    store_full(du, du_row + i);
    store_full(u, u_row + i);
  }
  const Vec mean = splat(sum_lanes(along) / float(dv));
  Vec dot = splat(0);
  for (size_t i = 0; i < dv; i += kLanes) {
    const size_t n = dv - i;
    const Vec dz =
        hn::Mul(hn::NegMulAdd(load_full(u_row + i), mean, load_full(du_row + i)), splat(rstd));
    dot = hn::MulAdd(dz, load(v + i, n), dot);
    store(dz, a.d_o.at(token, h) + i, n);
    store(hn::Mul(dz, splat(p)), a.d_v.at(token, h) + i, n);
  }
  const Vec d_dot = splat(sum_lanes(dot) * p * (1 - p));
  for (size_t i = 0; i < dk; i += kLanes) {
    const size_t n = dk - i;
    const Vec q_i = load(q + i, n), k_i = load(k + i, n);
    const Vec scaled = hn::Mul(load(balance_row + i, n), d_dot);
    store(hn::Mul(scaled, k_i), a.d_q.at(token, h) + i, n);
    store(hn::Mul(scaled, q_i), a.d_k.at(token, h) + i, n);
    store(hn::MulAdd(hn::Mul(q_i, k_i), d_dot, load(d_aug + i, n)), d_aug + i, n);
  }
}

template <class T>
void forward(const GlaOutputTokens<T>& a, int64_t begin, int64_t end) {
  for (int64_t token = begin; token < end; ++token) {
    for (int64_t h = 0; h < a.H; ++h) forward_head(a, token, h);
  }
}

template <class T>
void backward(const GlaOutputTokens<T>& a, int64_t begin, int64_t end, float* d_aug,
              float* d_norm) {
  std::fill_n(d_aug, a.H * a.dk, 0.0f);
  std::fill_n(d_norm, a.H * a.dv, 0.0f);
  const size_t padded = (size_t(a.dv) + kLanes - 1) / kLanes * kLanes;
  const auto rows = hwy::AllocateAligned<float>(2 * padded);
  for (int64_t token = begin; token < end; ++token) {
    for (int64_t h = 0; h < a.H; ++h) {
      backward_head(a, token, h, d_aug + h * a.dk, d_norm + h * a.dv, rows.get(),
                    rows.get() + padded);
    }
  }
}

#define LAPLACE_DEFINE(name, T)                                                              \
  void Forward##name(const GlaOutputTokens<T>& a, int64_t begin, int64_t end) {              \
    forward(a, begin, end);                                                                  \
  }                                                                                          \
  void Backward##name(const GlaOutputTokens<T>& a, int64_t begin, int64_t end, float* d_aug, \
                      float* d_norm) {                                                       \
    backward(a, begin, end, d_aug, d_norm);                                                  \
  }
LAPLACE_DEFINE(F, float)
LAPLACE_DEFINE(B, BFloat16)
#undef LAPLACE_DEFINE

}  // namespace laplace::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace laplace::ops {

#define LAPLACE_DISPATCH(name, T)                                                          \
  HWY_EXPORT(Forward##name);                                                               \
  HWY_EXPORT(Backward##name);                                                              \
  template <>                                                                              \
  void gla_output_tokens(const GlaOutputTokens<T>& a, int64_t begin, int64_t end) {        \
    HWY_DYNAMIC_DISPATCH(Forward##name)(a, begin, end);                                    \
  }                                                                                        \
  template <>                                                                              \
  void gla_output_tokens_backward(const GlaOutputTokens<T>& a, int64_t begin, int64_t end, \
                                  float* d_aug, float* d_norm) {                           \
    HWY_DYNAMIC_DISPATCH(Backward##name)(a, begin, end, d_aug, d_norm);                    \
  }
LAPLACE_DISPATCH(F, float)
LAPLACE_DISPATCH(B, BFloat16)
#undef LAPLACE_DISPATCH

}  // namespace laplace::ops
#endif  // HWY_ONCE
