// See kernel.h. The variance is taken of the centred values, as in the portable form.
#include "ops/layer_norm/kernel.h"

#include <cmath>

#include "ops/simd/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/layer_norm/kernel.cpp"
#include <hwy/foreach_target.h>

#include "ops/simd/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace laplace::ops::HWY_NAMESPACE {

template <class X, class Y>
HWY_INLINE void forward_row(const LayerNormRows<X, Y>& a, int64_t row) {
  const size_t D = size_t(a.D);
  const X* const x = a.x + row * a.D;
  Y* const y = a.y + row * a.D;
  Vec sum, squares;
  sum_over<1>(D, &sum, [&](size_t i, size_t n, Vec* s) { *s = hn::Add(*s, load(x + i, n)); });
  const float mean = sum_lanes(sum) / float(D);
  const Vec m = splat(mean);
  sum_over<1>(D, &squares, [&](size_t i, size_t n, Vec* s) {
    const Vec c = first_lanes(hn::Sub(load(x + i, n), m), n);
    *s = hn::MulAdd(c, c, *s);
  });
  const float rstd = float(1.0 / std::sqrt(double(sum_lanes(squares)) / double(D) + a.eps));
  const Vec r = splat(rstd);
  for (size_t i = 0; i < D; i += kLanes) {
    const Vec u = hn::Mul(hn::Sub(load(x + i, D - i), m), r);
    store(hn::Mul(u, load(a.weight + i, D - i)), y + i, D - i);
  }
  a.mean[row] = mean;
  a.rstd[row] = rstd;
}

// With u = (x - mean) rstd and du = dy * weight:  dx = rstd (du - mean(du) - u mean(du u)).
template <class X, class Y>
HWY_INLINE void backward_row(const LayerNormRows<X, Y>& a, int64_t row, float* dw) {
  const size_t D = size_t(a.D);
  const X* const x = a.x + row * a.D;
  const Y* const dy = a.dy + row * a.D;
  X* const dx = a.dx + row * a.D;
  const Vec m = splat(a.mean[row]), r = splat(a.rstd[row]);
  Vec sums[2];                                            // of du, and of du u
  sum_over<2>(D, sums, [&](size_t i, size_t n, Vec* s) {  // behind the end dy is zero
    const Vec u = hn::Mul(hn::Sub(load(x + i, n), m), r);
    const Vec g = load(dy + i, n);
    const Vec du = hn::Mul(g, load(a.weight + i, n));
    s[0] = hn::Add(s[0], du);
    s[1] = hn::MulAdd(du, u, s[1]);
    store(hn::MulAdd(g, u, load(dw + i, n)), dw + i, n);
  });
  const Vec mean_du = splat(sum_lanes(sums[0]) / float(D)),
            mean_along = splat(sum_lanes(sums[1]) / float(D));
  for (size_t i = 0; i < D; i += kLanes) {
    const Vec u = hn::Mul(hn::Sub(load(x + i, D - i), m), r);
    const Vec du = hn::Mul(load(dy + i, D - i), load(a.weight + i, D - i));
    const Vec centred = hn::NegMulAdd(u, mean_along, hn::Sub(du, mean_du));
    store(hn::Mul(centred, r), dx + i, D - i);
  }
}

template <class X, class Y>
void forward_rows(const LayerNormRows<X, Y>& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) forward_row(a, row);
}

template <class X, class Y>
void backward_rows(const LayerNormRows<X, Y>& a, int64_t begin, int64_t end, float* dw) {
  for (int64_t i = 0; i < a.D; ++i) dw[i] = 0;
  for (int64_t row = begin; row < end; ++row) backward_row(a, row, dw);
}

// Highway's tables hold plain functions: one a combination of dtypes.
static LayerNormKernels<float, float> FloatsToFloats() {
  return {forward_rows<float, float>, backward_rows<float, float>};
}
static LayerNormKernels<float, BFloat16> FloatsToHalves() {
  return {forward_rows<float, BFloat16>, backward_rows<float, BFloat16>};
}
static LayerNormKernels<BFloat16, BFloat16> HalvesToHalves() {
  return {forward_rows<BFloat16, BFloat16>, backward_rows<BFloat16, BFloat16>};
}
static LayerNormKernels<BFloat16, float> HalvesToFloats() {
  return {forward_rows<BFloat16, float>, backward_rows<BFloat16, float>};
}

}  // namespace laplace::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace laplace::ops {

HWY_EXPORT(FloatsToFloats);
HWY_EXPORT(FloatsToHalves);
HWY_EXPORT(HalvesToHalves);
HWY_EXPORT(HalvesToFloats);

template <>
LayerNormKernels<float, float> layer_norm_kernels() {
  return HWY_DYNAMIC_DISPATCH(FloatsToFloats)();
}
template <>
LayerNormKernels<float, BFloat16> layer_norm_kernels() {
  return HWY_DYNAMIC_DISPATCH(FloatsToHalves)();
}
template <>
LayerNormKernels<BFloat16, BFloat16> layer_norm_kernels() {
  return HWY_DYNAMIC_DISPATCH(HalvesToHalves)();
}
template <>
LayerNormKernels<BFloat16, float> layer_norm_kernels() {
  return HWY_DYNAMIC_DISPATCH(HalvesToFloats)();
}

}  // namespace laplace::ops
#endif  // HWY_ONCE
