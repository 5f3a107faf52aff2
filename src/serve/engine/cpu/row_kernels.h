// Everything that is not a matrix product, row by row: see Kernels for the maths.
#pragma once

#include "serve/engine/cpu/kernels.h"
#include "serve/engine/cpu/vec.h"

namespace laplace::cpu {
namespace {

// sum over j of term(j): four accumulators of vectors, added in a fixed order, then the rest.
template <class Term>
inline float sum_over(int64_t n, const Term& term) {
  Floats acc[4] = {};
  int64_t j = 0;
  for (; j + 4 * kLanes <= n; j += 4 * kLanes) {
    for (int i = 0; i < 4; ++i) acc[i] += term(j + i * kLanes, Floats{});
  }
  for (; j + kLanes <= n; j += kLanes) acc[0] += term(j, Floats{});
  float rest = 0;
  for (; j < n; ++j) rest += term(j, float{});
  return sum((acc[0] + acc[1]) + (acc[2] + acc[3])) + rest;
}

void layer_norm(const float* x, const float* weight, int64_t n, float eps, float* y) {
  const float mean =
      sum_over(n, [&](int64_t j, auto t) { return load<decltype(t)>(x + j); }) / float(n);
  const float square_sum = sum_over(n, [&](int64_t j, auto t) {
    const auto centred = load<decltype(t)>(x + j) - mean;
    return centred * centred;
  });
  const float rstd = 1.0F / __builtin_sqrtf(square_sum / float(n) + eps);
  for_lanes(n, [&](int64_t j, auto t) {
    using T = decltype(t);
    store(y + j, T((load<T>(x + j) - mean) * rstd * load<T>(weight + j)));
  });
}

void conv(const float* const* inputs, const float* weight, int64_t taps, int64_t n, float* y) {
  for_lanes(n, [&](int64_t j, auto t) {
    using T = decltype(t);
    T acc{};
    for (int64_t i = 0; i < taps; ++i) {
      acc = fma(load<T>(weight + i * n + j), load<T>(inputs[i] + j), acc);
    }
    store(y + j, silu<T>(acc));
  });
}

// Rows i .. i + kRows - 1 of S fade, take in k v^T, and are read into o. The sum over i runs
// upwards whatever kRows is. With kFetch, rows further on are asked for: the processor does not
// follow so many by itself, and a state that was not used since the last step is in memory.
template <int kRows, bool kFetch>
inline void update_rows(const GlaArgs& a, const float* k, const float* v, const float* q, float* o,
                        int64_t i) {
  float* const S = a.S + i * a.dv;
  for_lanes(a.dv, [&](int64_t j, auto t) {
    using T = decltype(t);
    const T fade = splat<T>(a.fade), value = load<T>(v + j);
    T out = load<T>(o + j);
    if (kFetch && j % 16 == 0) {
      constexpr int kAhead = 8;
      for (int r = 0; r < kRows; ++r) __builtin_prefetch(S + (kAhead + r) * a.dv + j, 1, 2);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      T s = load<T>(S + r * a.dv + j);
      s = fma(s, fade, s);
      s = fma(splat<T>(k[i + r]), value, s);
      store(S + r * a.dv + j, s);
      out = fma(splat<T>(q[i + r]), s, out);
    }
    store(o + j, out);
  });
}

void gla(const GlaArgs& a) {
  float* const o = a.scratch;
  float* const scaled = a.scratch + a.dv;
  for (int64_t token = 0; token < a.tokens; ++token) {
    const float* const q = a.qkvg + token * a.stride;
    const float *const k = q + a.k_offset, *const v = q + a.v_offset, *const g = q + a.g_offset;
    float* const y = a.y + token * a.y_stride;
    for_lanes(a.dk, [&](int64_t i, auto t) {
      using T = decltype(t);
      store(scaled + i, T(load<T>(q + i) * a.scale));
    });
    for_lanes(a.dv, [&](int64_t j, auto t) { store(o + j, t); });  // zeros
    int64_t i = 0;
    const bool first = token == 0;
    for (; i + 4 <= a.dk; i += 4) {
      first ? update_rows<4, true>(a, k, v, scaled, o, i)
            : update_rows<4, false>(a, k, v, scaled, o, i);
    }
    for (; i < a.dk; ++i) update_rows<1, false>(a, k, v, scaled, o, i);
    const float own = sigmoid(sum_over(a.dk, [&](int64_t n, auto t) {
      using T = decltype(t);
      return load<T>(q + n) * (load<T>(a.aug + n) * load<T>(k + n));
    }));
    for_lanes(a.dv, [&](int64_t j, auto t) {
      using T = decltype(t);
      store(o + j, fma(splat<T>(own), load<T>(v + j), load<T>(o + j)));
    });
    const float squares = sum_over(a.dv, [&](int64_t j, auto t) {
      const auto z = load<decltype(t)>(o + j);
      return z * z;
    });
    const float rstd = 1.0F / __builtin_sqrtf(squares / float(a.dv) + a.eps);
    for_lanes(a.dv, [&](int64_t j, auto t) {
      using T = decltype(t);
      const T normed = load<T>(o + j) * rstd * load<T>(a.norm + j);
      store(y + j, T(normed * silu<T>(load<T>(g + j))));
    });
  }
}

float largest(const float* x, int64_t n) {
  Floats best = splat<Floats>(-__builtin_inff());
  Floats seen{};  // a comparison passes over NaN, a sum does not
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    const Floats v = load<Floats>(x + j);
    best = v > best ? v : best;
    seen += v;
  }
  float lanes[kLanes];
  store(lanes, best);
  float out = lanes[0], total = sum(seen);
  for (int i = 1; i < kLanes; ++i) out = lanes[i] > out ? lanes[i] : out;
  for (; j < n; ++j) {
    out = x[j] > out ? x[j] : out;
    total += x[j];
  }
  return total != total ? total : out;
}

void soften(const float* x, int64_t n, float shift, float scale, float* scores, float* weights) {
  for_lanes(n, [&](int64_t j, auto t) {
    using T = decltype(t);
    const T score = (load<T>(x + j) - shift) * scale;
    store(scores + j, score);
    store(weights + j, T(score < splat<T>(-87.0F) ? T{} : exp<T>(score)));
  });
}

// Blocks of 1,024 in float32, blocks in float64: exact enough, and eight times as fast.
double sum_exp(const float* x, int64_t n, float shift) {
  double total = 0;
  for (int64_t first = 0; first < n; first += 1024) {
    const float* const block = x + first;
    total += sum_over(n - first < 1024 ? n - first : 1024, [&](int64_t j, auto t) {
      using T = decltype(t);
      return exp<T>(load<T>(block + j) - shift);
    });
  }
  return total;
}

}  // namespace
}  // namespace laplace::cpu
