// See kernel.h.
#include "ops/linear_cross_entropy/kernel.h"

#include <cmath>

#include "ops/simd/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/linear_cross_entropy/kernel.cpp"
#include <hwy/foreach_target.h>

#include "ops/simd/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace laplace::ops::HWY_NAMESPACE {

// NaN where one is: a maximum may pass over it, a sum does not.
template <class T>
HWY_INLINE float largest(const T* row, size_t n) {
  Vec top = load(row, n), seen = top;
  if (n < kLanes) top = hn::IfThenElse(hn::FirstN(F32(), n), top, splat(-INFINITY));
  const auto take = [&](Vec v) {
    top = hn::Max(top, v);
    seen = hn::Add(seen, v);
  };
  size_t i = kLanes;
  for (; i + kLanes <= n; i += kLanes) take(load_full(row + i));
  // The last vector once more, ending at the row's end.
  if (i < n) take(load_full(row + n - kLanes));
  const float total = sum_lanes(seen);
  return std::isnan(total) ? total : hn::GetLane(hn::MaxOfLanes(F32(), top));
}

// exps[i] = exp(row[i] - top), and their sum: four running sums a lane, so that no sum is long.
template <class T>
HWY_INLINE double exponentials(const T* row, size_t n, float top, float* exps) {
  constexpr size_t kSums = 4;
  Vec sums[kSums] = {splat(0), splat(0), splat(0), splat(0)};
  for (size_t i = 0, turn = 0; i < n; i += kLanes, turn = (turn + 1) % kSums) {
    const Vec e = first_lanes(exp_vec(hn::Sub(load(row + i, n - i), splat(top))), n - i);
    store(e, exps + i, n - i);
    sums[turn] = hn::Add(sums[turn], e);
  }
  double sum = 0;
  for (const Vec& s : sums) sum += double(sum_lanes(s));
  return sum;
}

HWY_INLINE void put(float x, float* to) { *to = x; }
HWY_INLINE void put(float x, BFloat16* to) { store(splat(x), to, 1); }

template <class T>
void rows(int64_t V, T* logits, const int64_t* target, float scale, bool gradients, float* exps,
          double* losses, int64_t begin, int64_t end) {
  const size_t n = size_t(V);
  for (int64_t row = begin; row < end; ++row) {
    T* const x = logits + row * V;
    const float top = largest(x, n);
    // exp_vec gives numbers whatever it is given.
    const double sum = exponentials(x, n, top, exps) + double(top - top);
    losses[row] = std::log(sum) - double(as_float(x[target[row]]) - top);
    if (!gradients) continue;
    const float factor = float(double(scale) / sum);
    for (size_t i = 0; i < n; i += kLanes) {
      store(hn::Mul(load(exps + i, n - i), splat(factor)), x + i, n - i);
    }
    put(exps[target[row]] * factor - scale, x + target[row]);
  }
}

static CrossEntropyKernel<float> Floats() { return rows<float>; }
static CrossEntropyKernel<BFloat16> Halves() { return rows<BFloat16>; }

}  // namespace laplace::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace laplace::ops {

LAPLACE_DISPATCH(CrossEntropyKernel, cross_entropy_kernel)

}  // namespace laplace::ops
#endif  // HWY_ONCE
