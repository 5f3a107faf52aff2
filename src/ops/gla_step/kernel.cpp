// See kernel.h. Rows of S are faded, written and read while they are in registers; the sums over
// rows stay in L1. The order of the sums does not depend on anything but dk.
#include "ops/gla_step/kernel.h"

#include <algorithm>

#include "ops/simd/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/gla_step/kernel.cpp"
#include <hwy/foreach_target.h>

#include "ops/simd/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace laplace::ops::HWY_NAMESPACE {

// Rows of S that are worked on together: v and the sums are read once for all of them.
inline constexpr int64_t kRows = 4;
// Rows that are asked for ahead: the processor does not follow so many rows by itself.
inline constexpr int64_t kAhead = 8;

// Rows [d, d+R) of S. The sum of a column goes over rows one after the other, whatever R is.
template <int64_t R, class T>
HWY_INLINE void step_rows(int64_t d, size_t n, const T* q, const T* k, const T* v, float fade,
                          float scale, float* S, float* sums) {
  float* const rows = S + size_t(d) * n;
  const Vec f = splat(fade);
  Vec q_d[R], k_d[R];
  for (int64_t r = 0; r < R; ++r) {
    q_d[r] = splat(as_float(q[d + r]) * scale);
    k_d[r] = splat(as_float(k[d + r]));
  }
  for (size_t i = 0; i < n; i += kLanes) {
    const Vec value = load(v + i, n - i);
    Vec sum = load(sums + i, n - i);
    if (i * sizeof(float) % 64 == 0) {
      for (int64_t r = 0; r < R; ++r) fetch_ahead(rows + size_t(kAhead + r) * n + i, 1);
    }
    for (int64_t r = 0; r < R; ++r) {
      float* const at = rows + size_t(r) * n + i;
      const Vec old = load(at, n - i);
      const Vec fresh = hn::MulAdd(k_d[r], value, hn::MulAdd(old, f, old));
      store(fresh, at, n - i);
      sum = hn::MulAdd(q_d[r], fresh, sum);
    }
    store(sum, sums + i, n - i);
  }
}

template <class T>
void step_head(int64_t dk, int64_t dv, const T* q, const T* k, const T* v, float fade, float scale,
               float* S, float* sums, T* o) {
  const size_t n = size_t(dv);
  std::fill_n(sums, n, 0.0f);
  int64_t d = 0;
  for (; d + kRows <= dk; d += kRows) step_rows<kRows>(d, n, q, k, v, fade, scale, S, sums);
  for (; d < dk; ++d) step_rows<1>(d, n, q, k, v, fade, scale, S, sums);
  for (size_t i = 0; i < n; i += kLanes) store(load(sums + i, n - i), o + i, n - i);
}

static GlaStepKernel<float> Floats() { return step_head<float>; }
static GlaStepKernel<BFloat16> Halves() { return step_head<BFloat16>; }

}  // namespace laplace::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace laplace::ops {

LAPLACE_DISPATCH(GlaStepKernel, gla_step_kernel)

}  // namespace laplace::ops
#endif  // HWY_ONCE
