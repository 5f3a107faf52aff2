// See kernel.h.
#include "ops/swiglu/kernel.h"

#include "ops/simd/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/swiglu/kernel.cpp"
#include <hwy/foreach_target.h>

#include "ops/simd/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace laplace::ops::HWY_NAMESPACE {

template <class T>
void forward(int64_t F, const T* gate_up, T* y, int64_t begin, int64_t end) {
  const size_t n = size_t(F);
  for (int64_t row = begin; row < end; ++row) {
    const T* const gate = gate_up + row * 2 * F;
    const T* const up = gate + F;
    for (size_t i = 0; i < n; i += kLanes) {
      const Vec g = load(gate + i, n - i);
      const Vec silu = hn::Mul(g, sigmoid_vec(g));
      store(hn::Mul(silu, load(up + i, n - i)), y + row * F + i, n - i);
    }
  }
}

// d silu(g) / dg = s (1 + g (1 - s)), s = sigmoid(g).
template <class T>
void backward(int64_t F, const T* gate_up, const T* dy, T* d_gate_up, int64_t begin, int64_t end) {
  const size_t n = size_t(F);
  for (int64_t row = begin; row < end; ++row) {
    const T* const gate = gate_up + row * 2 * F;
    const T* const up = gate + F;
    T* const d_gate = d_gate_up + row * 2 * F;
    T* const d_up = d_gate + F;
    for (size_t i = 0; i < n; i += kLanes) {
      const Vec g = load(gate + i, n - i), d = load(dy + row * F + i, n - i);
      const Sigmoid s = sigmoid_and_complement(g);
      const Vec silu = hn::Mul(g, s.value);
      const Vec d_silu = hn::MulAdd(silu, s.complement, s.value);
      store(hn::Mul(hn::Mul(d, load(up + i, n - i)), d_silu), d_gate + i, n - i);
      store(hn::Mul(d, silu), d_up + i, n - i);
    }
  }
}

static SwigluKernels<float> Floats() { return {forward<float>, backward<float>}; }
static SwigluKernels<BFloat16> Halves() { return {forward<BFloat16>, backward<BFloat16>}; }

}  // namespace laplace::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace laplace::ops {

LAPLACE_DISPATCH(SwigluKernels, swiglu_kernels)

}  // namespace laplace::ops
#endif  // HWY_ONCE
