// See kernel.h.
#include "ops/short_conv/kernel.h"

#include <algorithm>

#include "ops/simd/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/short_conv/kernel.cpp"
#include <hwy/foreach_target.h>

#include "ops/simd/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace laplace::ops::HWY_NAMESPACE {

// One vector of channels [i, i+n) of one sequence.
template <class X>
struct Column {
  const ShortConvBlocks<X>& a;
  int64_t b;
  size_t i, n;

  HWY_INLINE Vec weight(int64_t lag) const { return load(a.weight + (a.k - 1 - lag) * a.D + i, n); }
  HWY_INLINE bool starts(int64_t t) const {
    return a.doc_start != nullptr && a.doc_start[b * a.T + t] != 0;
  }
  HWY_INLINE int64_t at(int64_t t) const { return (b * a.T + t) * a.D + int64_t(i); }
  HWY_INLINE int64_t in_window(int64_t row) const { return (b * a.k + row) * a.D + int64_t(i); }
  // The input of token t, which may lie in the window (t < 0).
  HWY_INLINE Vec input(int64_t t) const {
    if (HWY_LIKELY(t >= 0)) return load(a.x + at(t), n);
    if (a.window == nullptr || t < -a.k) return splat(0);
    return load(a.window + in_window(a.k + t), n);
  }
  // history[lag] = the input of token t-1-lag where it belongs to the document of token t-1.
  template <int K>
  HWY_INLINE void history_before(int64_t t, Vec* history) const {
    bool same = true;
    for (int lag = 0; lag < K; ++lag) {
      history[lag] = same ? input(t - 1 - lag) : splat(0);
      if (t - 1 - lag >= 0 && starts(t - 1 - lag)) same = false;
    }
  }
};

template <int K>
HWY_INLINE void push(Vec* history, Vec x) {
  for (int lag = K - 1; lag > 0; --lag) history[lag] = history[lag - 1];
  history[0] = x;
}

template <int K>
HWY_INLINE Vec convolve(const Vec* history, const Vec* w) {
  Vec sum = hn::Mul(history[0], w[0]);
  for (int lag = 1; lag < K; ++lag) sum = hn::MulAdd(history[lag], w[lag], sum);
  return sum;
}

template <int K, class X>
HWY_INLINE void forward_column(const Column<X>& column, int64_t begin, int64_t end) {
  const ShortConvBlocks<X>& a = column.a;
  Vec history[K], w[K];
  for (int lag = 0; lag < K; ++lag) w[lag] = column.weight(lag);
  column.template history_before<K>(begin, history);
  for (int64_t t = begin; t < end; ++t) {
    if (column.starts(t)) std::fill_n(history, K, splat(0));
    push<K>(history, column.input(t));
    const Vec sum = convolve<K>(history, w);
    store(hn::Mul(sum, sigmoid_vec(sum)), a.y + column.at(t), column.n);
  }
  if (end < a.T) return;
  for (int lag = 0; lag < K; ++lag) {
    store(history[lag], a.window_out + column.in_window(K - 1 - lag), column.n);
  }
}

// The gradient of the input of token t (t < 0: in the window), from those of the sums of the tokens
// t..t+K-1, d_sum[0] being token `first`'s.
template <int K, class X>
HWY_INLINE Vec input_gradient(const Column<X>& column, int64_t t, int64_t first, const Vec* w,
                              const float* d_sum) {
  const ShortConvBlocks<X>& a = column.a;
  Vec gradient = splat(0);
  bool same = true;
  for (int lag = 0; lag < K && t + lag < a.T; ++lag) {
    if (t + lag < 0) continue;
    if (lag > 0 && column.starts(t + lag)) {
      same = false;
      break;
    }
    gradient = hn::MulAdd(load_full(d_sum + size_t(t + lag - first) * kLanes), w[lag], gradient);
  }
  if (a.d_window_out != nullptr && same && t >= a.T - K) {
    const Vec d = load(a.d_window_out + column.in_window(K - (a.T - t)), column.n);
    gradient = hn::Add(gradient, d);
  }
  return gradient;
}

template <int K, class X>
HWY_INLINE void backward_column(const Column<X>& column, int64_t begin, int64_t end, float* dw) {
  const ShortConvBlocks<X>& a = column.a;
  HWY_ALIGN float d_sum[(kConvBlockTokens + kConvMaxWidth) * kLanes];
  Vec history[K], w[K], d_weight[K];
  for (int lag = 0; lag < K; ++lag) w[lag] = column.weight(lag);
  std::fill_n(d_weight, K, splat(0));
  column.template history_before<K>(begin, history);
  // The K-1 tokens behind the block have a share in the gradients of its last inputs.
  for (int64_t t = begin; t < std::min(end + K - 1, a.T); ++t) {
    if (column.starts(t)) std::fill_n(history, K, splat(0));
    push<K>(history, column.input(t));
    const Vec sum = convolve<K>(history, w);
    const Vec s = sigmoid_vec(sum);
    const Vec slope = hn::Mul(s, hn::MulAdd(sum, hn::Sub(splat(1), s), splat(1)));
    const Vec d = hn::Mul(load(a.dy + column.at(t), column.n), slope);
    store_full(d, d_sum + size_t(t - begin) * kLanes);
    if (t >= end) continue;
    for (int lag = 0; lag < K; ++lag) d_weight[lag] = hn::MulAdd(d, history[lag], d_weight[lag]);
  }
  for (int64_t t = begin; t < end; ++t) {
    store(input_gradient<K>(column, t, begin, w, d_sum), a.dx + column.at(t), column.n);
  }
  if (begin == 0) {
    for (int64_t row = 0; row < K; ++row) {
      store(input_gradient<K>(column, row - K, 0, w, d_sum), a.d_window + column.in_window(row),
            column.n);
    }
  }
  for (int lag = 0; lag < K; ++lag) {
    store(d_weight[lag], dw + (K - 1 - lag) * a.D + column.i, column.n);
  }
}

template <int K, class X>
void forward_width(const ShortConvBlocks<X>& a, int64_t b, int64_t begin, int64_t end) {
  for (size_t i = 0; i < size_t(a.D); i += kLanes) {
    forward_column<K>(Column<X>{a, b, i, size_t(a.D) - i}, begin, end);
  }
}

template <int K, class X>
void backward_width(const ShortConvBlocks<X>& a, int64_t b, int64_t begin, int64_t end, float* dw) {
  for (size_t i = 0; i < size_t(a.D); i += kLanes) {
    backward_column<K>(Column<X>{a, b, i, size_t(a.D) - i}, begin, end, dw);
  }
}

// The width as a constant: the taps live in registers.
template <int K, class X>
void forward(const ShortConvBlocks<X>& a, int64_t b, int64_t begin, int64_t end) {
  if (a.k == K) {
    forward_width<K>(a, b, begin, end);
  } else if constexpr (K < kConvMaxWidth) {
    forward<K + 1>(a, b, begin, end);
  }
}
template <int K, class X>
void backward(const ShortConvBlocks<X>& a, int64_t b, int64_t begin, int64_t end, float* dw) {
  if (a.k == K) {
    backward_width<K>(a, b, begin, end, dw);
  } else if constexpr (K < kConvMaxWidth) {
    backward<K + 1>(a, b, begin, end, dw);
  }
}

#define LAPLACE_DEFINE(name, X)                                                            \
  void Forward##name(const ShortConvBlocks<X>& a, int64_t b, int64_t begin, int64_t end) { \
    forward<1>(a, b, begin, end);                                                          \
  }                                                                                        \
  void Backward##name(const ShortConvBlocks<X>& a, int64_t b, int64_t begin, int64_t end,  \
                      float* dw) {                                                         \
    backward<1>(a, b, begin, end, dw);                                                     \
  }
LAPLACE_DEFINE(F, float)
LAPLACE_DEFINE(B, BFloat16)
#undef LAPLACE_DEFINE

}  // namespace laplace::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace laplace::ops {

#define LAPLACE_DISPATCH(name, X)                                                              \
  HWY_EXPORT(Forward##name);                                                                   \
  HWY_EXPORT(Backward##name);                                                                  \
  template <>                                                                                  \
  void short_conv_tokens(const ShortConvBlocks<X>& a, int64_t b, int64_t begin, int64_t end) { \
    HWY_DYNAMIC_DISPATCH(Forward##name)(a, b, begin, end);                                     \
  }                                                                                            \
  template <>                                                                                  \
  void short_conv_tokens_backward(const ShortConvBlocks<X>& a, int64_t b, int64_t begin,       \
                                  int64_t end, float* dw) {                                    \
    HWY_DYNAMIC_DISPATCH(Backward##name)(a, b, begin, end, dw);                                \
  }
LAPLACE_DISPATCH(F, float)
LAPLACE_DISPATCH(B, BFloat16)
#undef LAPLACE_DISPATCH

}  // namespace laplace::ops
#endif  // HWY_ONCE
