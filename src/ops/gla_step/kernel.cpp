// See kernel.h. A row of S is faded, written and read while it is in registers; the sums over rows
// stay in L1. The order of the sums does not depend on anything but dk.
#include "ops/gla_step/kernel.h"

#include <algorithm>

#include "ops/simd/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/gla_step/kernel.cpp"
#include <hwy/foreach_target.h>

#include "ops/simd/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace laplace::ops::HWY_NAMESPACE {

template <class T>
void step_head(int64_t dk, int64_t dv, const T* q, const T* k, const T* v, float fade, float scale,
               float* S, float* sums, T* o) {
  const size_t n = size_t(dv);
  std::fill_n(sums, n, 0.0f);
  for (int64_t d = 0; d < dk; ++d) {
    const Vec q_d = splat(as_float(q[d]) * scale), k_d = splat(as_float(k[d])), f = splat(fade);
    float* const row = S + d * dv;
    for (size_t i = 0; i < n; i += kLanes) {
      const Vec old = load(row + i, n - i);
      const Vec fresh = hn::MulAdd(k_d, load(v + i, n - i), hn::MulAdd(old, f, old));
      store(fresh, row + i, n - i);
      store(hn::MulAdd(q_d, fresh, load(sums + i, n - i)), sums + i, n - i);
    }
  }
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
