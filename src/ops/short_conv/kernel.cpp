// See kernel.h.
#include "ops/short_conv/kernel.h"

#include <algorithm>

#include "ops/simd/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/short_conv/kernel.cpp"
#include <hwy/aligned_allocator.h>
#include <hwy/foreach_target.h>

#include "ops/simd/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace laplace::ops::HWY_NAMESPACE {

// Tokens that are worked on together: their inputs stay in registers.
inline constexpr int64_t kGroup = 4;
static_assert(kGroup >= kConvMaxWidth - 1);

// A block of tokens of one sequence. Token t-lag has a share in token t's sum for lag < reach(t).
template <int K, class X>
class Block {
 public:
  Block(const ShortConvBlocks<X>& blocks, int64_t sequence, int64_t begin, int64_t end)
      : a(blocks), b(sequence), begin(begin), end(end), reach_(reaches_ + K - begin) {
    int reach = K;
    for (int64_t t = begin - (K - 1); t < std::min(end + K - 1, a.T); ++t) {
      const bool starts = t >= 0 && a.doc_start != nullptr && a.doc_start[b * a.T + t] != 0;
      reach = starts ? 1 : std::min(K, reach + 1);
      reach_[t] = reach;
    }
  }

  HWY_INLINE int reach(int64_t t) const { return reach_[t]; }
  // Whether tokens [from, to) lie in the call and see all K inputs, all of them in x.
  HWY_INLINE bool plain(int64_t from, int64_t to) const {
    if (from < K - 1 || to > a.T) return false;
    return std::all_of(reach_ + from, reach_ + to, [](int reach) { return reach == K; });
  }
  HWY_INLINE int64_t at(int64_t t) const { return (b * a.T + t) * a.D; }
  HWY_INLINE int64_t in_window(int64_t row) const { return (b * a.k + row) * a.D; }
  // Channels [i, i+n) of the input of token t, which may lie in the window (t < 0).
  HWY_INLINE Vec input(int64_t t, size_t i, size_t n) const {
    if (HWY_LIKELY(t >= 0)) return load(a.x + at(t) + i, n);
    return a.window == nullptr ? splat(0) : load(a.window + in_window(K + t) + i, n);
  }

  const ShortConvBlocks<X>& a;
  const int64_t b, begin, end;

 private:
  int reaches_[kConvBlockTokens + 2 * kConvMaxWidth] = {};
  int* const reach_;  // by token
};

// Where the rows of a group's tokens begin, worked out once for all channels.
template <int K, class X>
struct GroupRows {
  GroupRows(const Block<K, X>& block, int64_t t0)
      : D(block.a.D), x(block.a.x + block.at(t0 - (K - 1))), weight(block.a.weight) {}
  HWY_INLINE Vec input(int64_t j, size_t i, size_t n) const { return load(x + j * D + i, n); }
  HWY_INLINE Vec tap(int lag, size_t i, size_t n) const {
    return load(weight + (K - 1 - lag) * D + i, n);
  }
  int64_t D;
  const X* x;  // of the oldest input
  const float* weight;
};

// Asks for the line of channel i of the next group's rows of x or dy; `row` is this group's first.
template <class X>
HWY_INLINE void fetch_next_group(const X* row, int64_t D, size_t i) {
  if (i * sizeof(X) % 64 != 0) return;  // once a line
  for (int64_t g = kGroup; g < 2 * kGroup; ++g) fetch_ahead(row + g * D + i, 1);
}

// kPlain: all of `count` == kGroup tokens see K inputs; then no branch is left.
template <int K, bool kPlain, class X>
HWY_INLINE void load_inputs(const Block<K, X>& block, const GroupRows<K, X>& rows, int64_t t0,
                            int64_t count, size_t i, size_t n, Vec* x) {
  for (int64_t j = 0; j < kGroup + K - 1; ++j) {
    const int64_t t = t0 - (K - 1) + j;
    if constexpr (kPlain) {
      x[j] = rows.input(j, i, n);
    } else {
      x[j] = t < std::min(t0 + count, block.a.T) ? block.input(t, i, n) : splat(0);
    }
  }
}

// The sum of token t, whose inputs are x[0..K-1], the oldest first.
template <int K, bool kPlain, class X>
HWY_INLINE Vec convolve(const Block<K, X>& block, int64_t t, const Vec* x, const Vec* w) {
  Vec sum = hn::Mul(x[K - 1], w[0]);
  for (int lag = 1; lag < K; ++lag) {
    if (kPlain || lag < block.reach(t)) sum = hn::MulAdd(x[K - 1 - lag], w[lag], sum);
  }
  return sum;
}

template <int K, bool kPlain, class X>
HWY_INLINE void forward_group(const Block<K, X>& block, int64_t t0, int64_t count) {
  const size_t D = size_t(block.a.D);
  const GroupRows<K, X> rows(block, t0);
  X* const y = block.a.y + block.at(t0);
  for (size_t i = 0; i < D; i += kLanes) {
    const size_t n = D - i;
    Vec x[kGroup + K - 1], w[K];
    for (int lag = 0; lag < K; ++lag) w[lag] = rows.tap(lag, i, n);
    load_inputs<K, kPlain>(block, rows, t0, count, i, n, x);
    if (kPlain) fetch_next_group(block.a.x + block.at(t0), block.a.D, i);
    for (int64_t g = 0; g < (kPlain ? kGroup : count); ++g) {
      const Vec sum = convolve<K, kPlain>(block, t0 + g, x + g, w);
      store(hn::Mul(sum, sigmoid_vec(sum)), y + size_t(g) * D + i, n);
    }
  }
}

template <int K, class X>
void forward_block(const Block<K, X>& block) {
  const ShortConvBlocks<X>& a = block.a;
  for (int64_t t = block.begin; t < block.end; t += kGroup) {
    const int64_t count = std::min(kGroup, block.end - t);
    if (count == kGroup && block.plain(t, t + kGroup)) {
      forward_group<K, true>(block, t, count);
    } else {
      forward_group<K, false>(block, t, count);
    }
  }
  if (block.end < a.T) return;
  for (int lag = 0; lag < K; ++lag) {
    float* const row = a.window_out + block.in_window(K - 1 - lag);
    for (size_t i = 0; i < size_t(a.D); i += kLanes) {
      const size_t n = size_t(a.D) - i;
      const bool kept = lag < block.reach(a.T - 1);
      store(kept ? block.input(a.T - 1 - lag, i, n) : splat(0), row + i, n);
    }
  }
}

// The gradient of the sum s: of SiLU, times dy.
HWY_INLINE Vec sum_gradient(Vec sum, Vec dy) {
  const Sigmoid s = sigmoid_and_complement(sum);
  return hn::Mul(dy, hn::Mul(s.value, hn::MulAdd(sum, s.complement, splat(1))));
}

// The gradient of the input of token t, to the row dx (t < 0: to the window); d_sum[lag] is that of
// token t+lag.
template <int K, bool kPlain, class X>
HWY_INLINE void put_input_gradient(const Block<K, X>& block, int64_t t, size_t i, size_t n,
                                   const Vec* w, const Vec* d_sum, X* dx) {
  Vec gradient = hn::Mul(d_sum[0], w[0]);
  if constexpr (kPlain) {
    for (int lag = 1; lag < K; ++lag) gradient = hn::MulAdd(d_sum[lag], w[lag], gradient);
    store(gradient, dx + i, n);
    return;
  }
  const ShortConvBlocks<X>& a = block.a;
  if (t >= block.end || (t < block.begin && t >= 0) || (t < 0 && block.begin > 0)) return;
  for (int lag = 1; lag < K; ++lag) {
    if (t + lag < a.T && t + lag >= 0 && lag < block.reach(t + lag)) {
      gradient = hn::MulAdd(d_sum[lag], w[lag], gradient);
    }
  }
  const int64_t age = a.T - 1 - t;
  if (a.d_window_out != nullptr && age < K && age < block.reach(a.T - 1)) {
    gradient = hn::Add(gradient, load(a.d_window_out + block.in_window(K - 1 - age) + i, n));
  }
  if (t >= 0) {
    store(gradient, dx + i, n);
  } else {
    store(gradient, a.d_window + block.in_window(K + t) + i, n);
  }
}

// Adds tokens [t0, t0+count) to dw, and writes the gradients of the inputs of tokens
// [t0-(K-1), t0-(K-1)+kGroup): those that later tokens have no share in. `carry` [K-1][D] holds the
// gradients of the last K-1 sums.
template <int K, bool kPlain, class X>
HWY_INLINE void backward_group(const Block<K, X>& block, int64_t t0, int64_t count, float* carry,
                               float* dw) {
  const size_t D = size_t(block.a.D), stride = (D + kLanes - 1) / kLanes * kLanes;
  const GroupRows<K, X> rows(block, t0);
  const X* const dy = block.a.dy + block.at(t0);
  X* const dx = block.a.dx + block.at(t0 - (K - 1));
  for (size_t i = 0; i < D; i += kLanes) {
    const size_t n = D - i;
    Vec x[kGroup + K - 1], w[K], d_sum[kGroup + K - 1], d_weight[K];
    for (int lag = 0; lag < K; ++lag) w[lag] = rows.tap(lag, i, n);
    for (int lag = 0; lag < K; ++lag) d_weight[lag] = splat(0);
    for (int j = 0; j < K - 1; ++j) d_sum[j] = load_full(carry + size_t(j) * stride + i);
    load_inputs<K, kPlain>(block, rows, t0, count, i, n, x);
    if (kPlain) fetch_next_group(block.a.x + block.at(t0), block.a.D, i);
    if (kPlain) fetch_next_group(dy, block.a.D, i);
    for (int64_t g = 0; g < kGroup; ++g) {
      const int64_t t = t0 + g;
      if (!kPlain && g >= count) {
        d_sum[K - 1 + g] = splat(0);
        continue;
      }
      const Vec sum = convolve<K, kPlain>(block, t, x + g, w);
      const Vec d = sum_gradient(sum, load(dy + size_t(g) * D + i, n));
      d_sum[K - 1 + g] = d;
      if (!kPlain && t >= block.end) continue;
      for (int lag = 0; lag < K; ++lag) {
        if (!kPlain && lag >= block.reach(t)) break;
        d_weight[lag] = hn::MulAdd(d, x[g + K - 1 - lag], d_weight[lag]);
      }
    }
    for (int64_t j = 0; j < kGroup; ++j) {
      put_input_gradient<K, kPlain>(block, t0 - (K - 1) + j, i, n, w, d_sum + j,
                                    dx + size_t(j) * D);
    }
    for (int j = 0; j < K - 1; ++j) store_full(d_sum[kGroup + j], carry + size_t(j) * stride + i);
    for (int lag = 0; lag < K; ++lag) {
      float* const row = dw + size_t(K - 1 - lag) * D + i;
      store(hn::Add(d_weight[lag], load(row, n)), row, n);
    }
  }
}

template <int K, class X>
void backward_block(const Block<K, X>& block, float* dw) {
  const ShortConvBlocks<X>& a = block.a;
  const size_t D = size_t(a.D), stride = (D + kLanes - 1) / kLanes * kLanes;
  const auto carry = hwy::AllocateAligned<float>(K * stride);
  std::fill_n(carry.get(), K * stride, 0.0f);
  std::fill_n(dw, K * D, 0.0f);
  // The K-1 tokens behind the block have a share in the gradients of its last inputs.
  const int64_t last = std::min(block.end + K - 1, a.T);
  for (int64_t t = block.begin; t - (K - 1) < block.end; t += kGroup) {
    const int64_t count = std::clamp<int64_t>(last - t, 0, kGroup);
    const bool inside = t - (K - 1) >= block.begin && t + kGroup <= block.end && t + kGroup < a.T;
    if (inside && block.plain(t - (K - 1), t + kGroup)) {
      backward_group<K, true>(block, t, count, carry.get(), dw);
    } else {
      backward_group<K, false>(block, t, count, carry.get(), dw);
    }
  }
  // The oldest input of the window has no share in anything.
  if (block.begin == 0) std::fill_n(a.d_window + block.in_window(0), D, 0.0f);
}

template <int K, class X>
void forward_width(const ShortConvBlocks<X>& a, int64_t b, int64_t begin, int64_t end) {
  forward_block(Block<K, X>(a, b, begin, end));
}
template <int K, class X>
void backward_width(const ShortConvBlocks<X>& a, int64_t b, int64_t begin, int64_t end, float* dw) {
  backward_block(Block<K, X>(a, b, begin, end), dw);
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

static ShortConvKernels<float> Floats() { return {forward<1, float>, backward<1, float>}; }
static ShortConvKernels<BFloat16> Halves() { return {forward<1, BFloat16>, backward<1, BFloat16>}; }

}  // namespace laplace::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace laplace::ops {

LAPLACE_DISPATCH(ShortConvKernels, short_conv_kernels)

}  // namespace laplace::ops
#endif  // HWY_ONCE
