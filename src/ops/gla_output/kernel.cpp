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

// What a token's heads need in turn. Each loop below goes over all heads, so that the sums of one
// head do not wait for those of the one before.
struct HeadSums {
  explicit HeadSums(int64_t heads, int64_t dv)
      : padded((size_t(heads) + kLanes - 1) / kLanes * kLanes),
        row((size_t(dv) + kLanes - 1) / kLanes * kLanes),
        memory(hwy::AllocateAligned<float>(3 * padded + 2 * size_t(heads) * row)),
        p(memory.get()),
        rstd(p + padded),
        along(rstd + padded),
        du(along + padded),
        u(du + size_t(heads) * row) {
    std::fill_n(memory.get(), 3 * padded, 0.0f);
  }

  size_t padded, row;
  hwy::AlignedFreeUniquePtr<float[]> memory;
  float *p, *rstd, *along;  // [H]
  float *du, *u;            // [H,dv], backward only
};

// What a later token reads.
template <class T>
HWY_INLINE void fetch_token(const GlaOutputTokens<T>& a, int64_t token, int64_t h, bool backward) {
  fetch_ahead(a.q.at(token, h), size_t(a.dk));
  fetch_ahead(a.k.at(token, h), size_t(a.dk));
  fetch_ahead(a.v.at(token, h), size_t(a.dv));
  fetch_ahead(a.o.at(token, h), size_t(a.dv));
  fetch_ahead(a.g.at(token, h), size_t(a.dv));
  if (backward) fetch_ahead(a.dy.at(token, h), size_t(a.dv));
}

// p = sigmoid( q . (a * k) )
template <class T>
HWY_INLINE void balances(const GlaOutputTokens<T>& a, int64_t token, const HeadSums& sums) {
  const size_t dk = size_t(a.dk);
  for (int64_t h = 0; h < a.H; ++h) {
    const T *const q = a.q.at(token, h), *const k = a.k.at(token, h);
    const float* const balance = a.aug_balance + h * a.dk;
    Vec dot = splat(0);
    for (size_t i = 0; i < dk; i += kLanes) {
      const Vec qk = hn::Mul(load(q + i, dk - i), load(k + i, dk - i));
      dot = hn::MulAdd(qk, load(balance + i, dk - i), dot);
    }
    sums.p[h] = sum_lanes(dot);
  }
  for (size_t i = 0; i < sums.padded; i += kLanes) {
    store_full(sigmoid_vec(load_full(sums.p + i)), sums.p + i);
  }
}

// z = o + p v, and 1 / sqrt(mean(z^2) + eps).
template <class T>
HWY_INLINE void norms(const GlaOutputTokens<T>& a, int64_t token, const HeadSums& sums) {
  const size_t dv = size_t(a.dv);
  for (int64_t h = 0; h < a.H; ++h) {
    const T *const o = a.o.at(token, h), *const v = a.v.at(token, h);
    const Vec p = splat(sums.p[h]);
    Vec squares = splat(0);
    for (size_t i = 0; i < dv; i += kLanes) {
      const Vec z = hn::MulAdd(load(v + i, dv - i), p, load(o + i, dv - i));
      squares = hn::MulAdd(z, z, squares);
    }
    sums.rstd[h] = sum_lanes(squares);
  }
  const Vec scale = splat(1.0f / float(dv)), eps = splat(float(a.eps));
  for (size_t i = 0; i < sums.padded; i += kLanes) {
    const Vec variance = hn::MulAdd(load_full(sums.rstd + i), scale, eps);
    store_full(hn::Div(splat(1), hn::Sqrt(variance)), sums.rstd + i);
  }
}

template <class T>
HWY_INLINE void forward_head(const GlaOutputTokens<T>& a, int64_t token, int64_t h,
                             const HeadSums& sums) {
  const size_t dv = size_t(a.dv);
  const T *const o = a.o.at(token, h), *const v = a.v.at(token, h), *const g = a.g.at(token, h);
  const float* const w = a.norm + h * a.dv;
  T* const y = a.y.at(token, h);
  const Vec p = splat(sums.p[h]), rstd = splat(sums.rstd[h]);
  for (size_t i = 0; i < dv; i += kLanes) {
    const Vec z = hn::MulAdd(load(v + i, dv - i), p, load(o + i, dv - i));
    const Vec gate = load(g + i, dv - i);
    const Vec silu = hn::Mul(gate, sigmoid_vec(gate));
    store(hn::Mul(hn::Mul(silu, z), hn::Mul(rstd, load(w + i, dv - i))), y + i, dv - i);
  }
}

// The maths of backward is that of portable.cpp. First the gate, the norm's weight, and du = dn * w
// with its sum along u; du and u pass through memory.
template <class T>
HWY_INLINE void backward_gate(const GlaOutputTokens<T>& a, int64_t token, int64_t h, float* d_norm,
                              const HeadSums& sums) {
  const size_t dv = size_t(a.dv);
  const T *const o = a.o.at(token, h), *const v = a.v.at(token, h), *const g = a.g.at(token, h);
  const T* const dy = a.dy.at(token, h);
  const float* const w = a.norm + h * a.dv;
  float *const du_row = sums.du + size_t(h) * sums.row, *const u_row =
                                                            sums.u + size_t(h) * sums.row;
  const Vec p = splat(sums.p[h]), rstd = splat(sums.rstd[h]);
  Vec along = splat(0);
  for (size_t i = 0; i < dv; i += kLanes) {
    const size_t n = dv - i;
    const Vec z = hn::MulAdd(load(v + i, n), p, load(o + i, n));
    const Vec u = hn::Mul(z, rstd);
    const Vec gate = load(g + i, n), d = load(dy + i, n), weight = load(w + i, n);
    const Sigmoid s = sigmoid_and_complement(gate);
    const Vec silu = hn::Mul(gate, s.value);
    const Vec d_silu = hn::MulAdd(silu, s.complement, s.value);
    store(hn::Mul(hn::Mul(d, u), hn::Mul(weight, d_silu)), a.d_g.at(token, h) + i, n);
    const Vec dn = hn::Mul(d, silu);
    store(hn::MulAdd(dn, u, load(d_norm + i, n)), d_norm + i, n);
    const Vec du = hn::Mul(dn, weight);
    along = hn::MulAdd(du, u, along);
    store_full(du, du_row + i);
    store_full(u, u_row + i);
  }
  sums.along[h] = sum_lanes(along) / float(dv);
}

// Then z = o + p v; the sum of dz v takes the place of `along`.
template <class T>
HWY_INLINE void backward_norm(const GlaOutputTokens<T>& a, int64_t token, int64_t h,
                              const HeadSums& sums) {
  const size_t dv = size_t(a.dv);
  const T* const v = a.v.at(token, h);
  const float *const du_row = sums.du + size_t(h) * sums.row, *const u_row =
                                                                  sums.u + size_t(h) * sums.row;
  const Vec mean = splat(sums.along[h]), p = splat(sums.p[h]), rstd = splat(sums.rstd[h]);
  Vec dot = splat(0);
  for (size_t i = 0; i < dv; i += kLanes) {
    const size_t n = dv - i;
    const Vec dz = hn::Mul(hn::NegMulAdd(load_full(u_row + i), mean, load_full(du_row + i)), rstd);
    dot = hn::MulAdd(dz, load(v + i, n), dot);
    store(dz, a.d_o.at(token, h) + i, n);
    store(hn::Mul(dz, p), a.d_v.at(token, h) + i, n);
  }
  sums.along[h] = sum_lanes(dot);
}

// Then p, the sigmoid of q . (a * k).
template <class T>
HWY_INLINE void backward_balance(const GlaOutputTokens<T>& a, int64_t token, int64_t h,
                                 float* d_aug, const HeadSums& sums) {
  const size_t dk = size_t(a.dk);
  const T *const q = a.q.at(token, h), *const k = a.k.at(token, h);
  const float* const balance = a.aug_balance + h * a.dk;
  const float p = sums.p[h];
  const Vec d_dot = splat(sums.along[h] * p * (1 - p));
  for (size_t i = 0; i < dk; i += kLanes) {
    const size_t n = dk - i;
    const Vec q_i = load(q + i, n), k_i = load(k + i, n);
    const Vec scaled = hn::Mul(load(balance + i, n), d_dot);
    store(hn::Mul(scaled, k_i), a.d_q.at(token, h) + i, n);
    store(hn::Mul(scaled, q_i), a.d_k.at(token, h) + i, n);
    store(hn::MulAdd(hn::Mul(q_i, k_i), d_dot, load(d_aug + i, n)), d_aug + i, n);
  }
}

template <class T>
void forward(const GlaOutputTokens<T>& a, int64_t begin, int64_t end) {
  const HeadSums sums(a.H, 0);
  for (int64_t token = begin; token < end; ++token) {
    balances(a, token, sums);
    norms(a, token, sums);
    for (int64_t h = 0; h < a.H; ++h) {
      fetch_token(a, std::min(token + 1, end - 1), h, false);
      forward_head(a, token, h, sums);
    }
  }
}

template <class T>
void backward(const GlaOutputTokens<T>& a, int64_t begin, int64_t end, float* d_aug,
              float* d_norm) {
  std::fill_n(d_aug, a.H * a.dk, 0.0f);
  std::fill_n(d_norm, a.H * a.dv, 0.0f);
  const HeadSums sums(a.H, a.dv);
  for (int64_t token = begin; token < end; ++token) {
    balances(a, token, sums);
    norms(a, token, sums);
    for (int64_t h = 0; h < a.H; ++h) {
      fetch_token(a, std::min(token + 1, end - 1), h, true);
      backward_gate(a, token, h, d_norm + h * a.dv, sums);
    }
    for (int64_t h = 0; h < a.H; ++h) backward_norm(a, token, h, sums);
    for (int64_t h = 0; h < a.H; ++h) backward_balance(a, token, h, d_aug + h * a.dk, sums);
  }
}

static GlaOutputKernels<float> Floats() { return {forward<float>, backward<float>}; }
static GlaOutputKernels<BFloat16> Halves() { return {forward<BFloat16>, backward<BFloat16>}; }

}  // namespace laplace::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace laplace::ops {

LAPLACE_DISPATCH(GlaOutputKernels, gla_output_kernels)

}  // namespace laplace::ops
#endif  // HWY_ONCE
