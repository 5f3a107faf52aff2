// The matrix product's loops, for every instruction set and dtype; what differs is in a policy P:
//
//   kVectors, kMaxRows   a tile has kMaxRows rows at most and kVectors vectors of columns
//   kGroup               panels done together for one row, so that there are enough sums in flight
//   kGroupOfThree        and for three rows, as many as the registers hold
//   Acc                  a vector of accumulators (Floats or Ints)
//   kStep, kStepBytes, kStepX      elements of K in a step; bytes of a panel's and of x's step
//   kRounds, kInner      a step is worked off in kRounds rounds of kInner parts, one after another
//   load(w, round, part, vectors)  a part's weights as kVectors vectors
//   broadcast(x), mac(acc, x, w)
//   kHeader              whether accumulators begin with what the panel's header says, not zero
//
// Sums run over K upwards in one accumulator a column. Where K is cut into blocks (many rows: the
// block of weights stays in L1 for all of them), accumulators rest in memory between blocks,
// unrounded. So neither rows, nor tiles, nor blocks change a bit.
#pragma once

#include "serve/engine/cpu/kernels.h"
#include "serve/engine/cpu/row_kernels.h"
#include "serve/engine/cpu/vec.h"

namespace laplace::cpu {
namespace {

template <class P>
struct Tiles {
  using Acc = typename P::Acc;
  static constexpr int64_t kWidth = int64_t{P::kVectors} * kLanes;
  static constexpr int64_t kBlockSteps = 16384 / P::kStepBytes;  // 16 KB of weights
  static constexpr int64_t kPartX = P::kStepX / (P::kRounds * P::kInner);

  // Weights on their way from memory while a tile computes: what is needed `ahead` of step s is
  // asked for at step s, `ahead_step` bytes further each time.
  struct Ahead {
    const std::byte* from;
    int64_t step;
  };

  // Several panels are read once, into L1; the block of one panel beside the next one's would not
  // fit there.
  template <int kPanels>
  static void prefetch(const std::byte* line) {
    __builtin_prefetch(line, 0, kPanels > 1 ? 3 : 2);
  }

  // kPanels panels of kRows rows: acc [kPanels][rows][kWidth] (+)= x W^T over `steps` steps.
  template <int kRows, int kPanels>
  static void tile(const std::byte* w, int64_t panel_bytes, const std::byte* x, int64_t x_stride,
                   int64_t steps, const std::byte* header, int32_t* acc, int64_t acc_panel,
                   bool first, Ahead ahead) {
    Acc sums[kPanels][kRows][P::kVectors];
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < P::kVectors; ++v) {
          if (!first) {
            sums[p][r][v] = load<Acc>(acc + p * acc_panel + r * kWidth + v * kLanes);
          } else if (P::kHeader) {
            sums[p][r][v] = load<Acc>(header + p * panel_bytes + v * sizeof(Acc));
          } else {
            sums[p][r][v] = Acc{};
          }
        }
      }
    }
    for (int64_t s = 0; s < steps; ++s) {
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) {
        const std::byte* const step = w + p * panel_bytes + s * P::kStepBytes;
#pragma GCC unroll 1
        for (int round = 0; round < P::kRounds; ++round) {
          prefetch<kPanels>(ahead.from + p * panel_bytes + s * ahead.step +
                            round * (ahead.step / P::kRounds));
#pragma GCC unroll 8
          for (int part = 0; part < P::kInner; ++part) {
            typename P::Weight weights[P::kVectors];
            P::load(step, round, part, weights);
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r) {
              const auto value = P::broadcast(x + r * x_stride + s * P::kStepX +
                                              (round * P::kInner + part) * kPartX);
#pragma GCC unroll 4
              for (int v = 0; v < P::kVectors; ++v) {
                sums[p][r][v] = P::mac(sums[p][r][v], value, weights[v]);
              }
            }
          }
        }
      }
    }
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < P::kVectors; ++v) {
          store(acc + p * acc_panel + r * kWidth + v * kLanes, sums[p][r][v]);
        }
      }
    }
  }

  // One finished row of a panel.
  static void finish(const GemmArgs& a, int64_t panel, int64_t row, const int32_t* acc) {
    float y[kWidth];
    for (int64_t c = 0; c < kWidth; c += kLanes) {
      if constexpr (P::kInteger) {
        const Floats scale = load<Floats>(a.scales + panel * kWidth + c) * a.x_scales[row];
        store(y + c, Floats(__builtin_convertvector(load<Ints>(acc + c), Floats) * scale));
      } else {
        store(y + c, load<Floats>(acc + c));
      }
    }
    constexpr int64_t kHalf = kWidth / 2;
    const int64_t width = a.epilogue == Epilogue::kSwiglu ? kHalf : kWidth;
    const int64_t begin = panel * width;
    const int64_t n = a.columns - begin < width ? a.columns - begin : width;
    float* const out = a.out + row * a.out_stride + begin;
    switch (a.epilogue) {
      case Epilogue::kStore:
        for_lanes(n, [&](int64_t j, auto t) { store(out + j, load<decltype(t)>(y + j)); });
        break;
      case Epilogue::kAdd:
        for_lanes(n, [&](int64_t j, auto t) {
          using T = decltype(t);
          store(out + j, T(load<T>(out + j) + load<T>(y + j)));
        });
        break;
      case Epilogue::kSwiglu:
        for_lanes(n, [&](int64_t j, auto t) {
          using T = decltype(t);
          store(out + j, T(silu<T>(load<T>(y + j)) * load<T>(y + kHalf + j)));
        });
    }
  }

  using Tile = void (*)(const std::byte*, int64_t, const std::byte*, int64_t, int64_t,
                        const std::byte*, int32_t*, int64_t, bool, Ahead);
  static constexpr Tile kTiles[] = {nullptr,    tile<1, 1>, tile<2, 1>, tile<3, 1>,
                                    tile<4, 1>, tile<5, 1>, tile<6, 1>};
  static_assert(P::kMaxRows <= 6);

  // Few rows: kPanels panels at once, all of K. What lies ahead of the panels' last steps is the
  // beginning of the next panels.
  template <int kRows, int kPanels>
  static void panels_of(const GemmArgs& a, const std::byte* panel, int32_t* acc) {
    constexpr int64_t kAhead = 2048, kAheadSteps = kAhead / P::kStepBytes;
    const std::byte* const w = panel + (P::kHeader ? kWidth * 4 : 0);
    const int64_t most = a.steps > kAheadSteps ? a.steps - kAheadSteps : 0;
    const int64_t rest = most * P::kStepBytes;
    constexpr int64_t kAccPanel = kRows * kWidth;
    tile<kRows, kPanels>(w, a.panel_bytes, a.x, a.x_stride, most, panel, acc, kAccPanel, true,
                         {w + kAhead, P::kStepBytes});
    tile<kRows, kPanels>(w + rest, a.panel_bytes, a.x + most * P::kStepX, a.x_stride,
                         a.steps - most, panel, acc, kAccPanel, false,
                         {panel + kPanels * a.panel_bytes, P::kStepBytes});
  }

  template <int kRows, int kPanels>
  static void narrow(const GemmArgs& a, int64_t first, int64_t last, int32_t* acc) {
    constexpr int64_t kAccPanel = kRows * kWidth;
    while (first < last) {
      const std::byte* const panel = a.weights + first * a.panel_bytes;
      int64_t done = 1;
      if (last - first >= kPanels) {
        done = kPanels;
        panels_of<kRows, kPanels>(a, panel, acc);
      } else {
        panels_of<kRows, 1>(a, panel, acc);
      }
      for (int64_t p = 0; p < done; ++p) {
        for (int64_t r = 0; r < kRows; ++r) {
          finish(a, first + p, r, acc + p * kAccPanel + r * kWidth);
        }
      }
      first += done;
    }
  }

  // Many rows: one panel, blocks of K, tiles of nearly equal height. Each tile asks for its share
  // of the next block, which is the next panel's first after the last.
  static void wide(const GemmArgs& a, int64_t panel, int32_t* acc) {
    const std::byte* const header = a.weights + panel * a.panel_bytes;
    const std::byte* const w = header + (P::kHeader ? kWidth * 4 : 0);
    const int64_t tiles = (a.m + P::kMaxRows - 1) / P::kMaxRows;
    const int64_t ahead_step = (P::kStepBytes + tiles - 1) / tiles;
    for (int64_t s = 0; s < a.steps; s += kBlockSteps) {
      const int64_t steps = a.steps - s < kBlockSteps ? a.steps - s : kBlockSteps;
      const std::byte* const block = w + s * P::kStepBytes;
      const std::byte* const next = block + steps * P::kStepBytes;
      for (int64_t t = 0; t < tiles; ++t) {
        const int64_t row = a.m * t / tiles, rows = a.m * (t + 1) / tiles - row;
        const bool more = t * ahead_step < P::kStepBytes;
        kTiles[rows](block, a.panel_bytes, a.x + row * a.x_stride + s * P::kStepX, a.x_stride,
                     steps, header, acc + row * kWidth, 0, s == 0,
                     more ? Ahead{next + t * steps * ahead_step, ahead_step} : Ahead{block, 0});
      }
    }
    for (int64_t r = 0; r < a.m; ++r) finish(a, panel, r, acc + r * kWidth);
  }

  static void run(const GemmArgs& a, int64_t first, int64_t last, std::byte* scratch) {
    auto* const acc = reinterpret_cast<int32_t*>(scratch);
    switch (a.m) {
      case 0:
        return;
      case 1:
        return narrow<1, P::kGroup>(a, first, last, acc);
      case 2:
        return narrow<2, (P::kGroup > 2 ? 2 : 1)>(a, first, last, acc);
      case 3:
        return narrow<3, P::kGroupOfThree>(a, first, last, acc);
      default:
        for (int64_t panel = first; panel < last; ++panel) wide(a, panel, acc);
    }
  }
};

// A step has one part.
struct OnePart {
  static constexpr int kRounds = 1, kInner = 1;
};

// float32 weights: [K][width].
struct Float32 : OnePart {
  using Acc = Floats;
  using Weight = Floats;
  static constexpr bool kHeader = false, kInteger = false;
#if defined(__AVX512F__)
  static constexpr int kVectors = 4, kMaxRows = 6, kGroup = 2, kGroupOfThree = 1;
#else
  static constexpr int kVectors = 2, kMaxRows = 6, kGroup = 4, kGroupOfThree = 2;
#endif
  static constexpr int64_t kStep = 1, kStepBytes = 4 * kVectors * kLanes, kStepX = 4;

  static void load(const std::byte* w, int, int, Floats* out) {
    for (int v = 0; v < kVectors; ++v) out[v] = cpu::load<Floats>(w + v * sizeof(Floats));
  }
  static Floats broadcast(const std::byte* x) { return splat<Floats>(cpu::load<float>(x)); }
  static Floats mac(Floats acc, Floats x, Floats w) { return fma(x, w, acc); }

  static void pack(const float* const* rows, int64_t k, std::byte* panel, float*) {
    constexpr int64_t kWidth = Tiles<Float32>::kWidth;
    auto* const out = reinterpret_cast<float*>(panel);
    for (int64_t c = 0; c < kWidth; ++c) {
      for (int64_t i = 0; i < k; ++i) out[i * kWidth + c] = rows[c] == nullptr ? 0 : rows[c][i];
    }
  }
};

// To the nearest, ties to even; NaN stays NaN.
inline uint16_t to_bfloat16(float x) {
  const auto bits = bits_as<uint32_t>(x);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return uint16_t(bits >> 16 | 0x40);
  return uint16_t((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// bfloat16 weights, widened to float32 as they are read; x stays float32. A word holds the weight
// of one vector's column below and of the next vector's above: a shift and a mask widen both.
struct Bfloat16Widened : OnePart {
  using Acc = Floats;
  using Weight = Floats;
  static constexpr bool kHeader = false, kInteger = false;
  static constexpr int kVectors = Float32::kVectors, kMaxRows = 6, kGroup = Float32::kGroup;
  static constexpr int kGroupOfThree = 1;
  static constexpr int64_t kStep = 1, kStepBytes = 2 * kVectors * kLanes, kStepX = 4;

  static void load(const std::byte* w, int, int, Floats* out) {
    for (int v = 0; v < kVectors; v += 2) {
      const Words words = cpu::load<Words>(w + v / 2 * sizeof(Words));
      out[v] = bits_as<Floats>(words << 16);
      out[v + 1] = bits_as<Floats>(words & 0xFFFF0000U);
    }
  }
  static Floats broadcast(const std::byte* x) { return splat<Floats>(cpu::load<float>(x)); }
  static Floats mac(Floats acc, Floats x, Floats w) { return fma(x, w, acc); }

  static void pack(const float* const* rows, int64_t k, std::byte* panel, float*) {
    constexpr int64_t kWidth = Tiles<Bfloat16Widened>::kWidth;
    auto* const out = reinterpret_cast<uint16_t*>(panel);
    for (int64_t c = 0; c < kWidth; ++c) {
      const int64_t vector = c / kLanes, lane = c % kLanes;
      const int64_t at = vector / 2 * (2 * kLanes) + 2 * lane + vector % 2;
      for (int64_t i = 0; i < k; ++i) {
        out[i * kWidth + at] = rows[c] == nullptr ? 0 : to_bfloat16(rows[c][i]);
      }
    }
  }
};

// A row of x as whole numbers from -127 to 127 and a scale; put(i, value) stores one. NaN and
// infinity make the scale NaN or infinite, so they are not lost.
template <class Put>
inline void quantise(const float* x, int64_t k, float* scale, const Put& put) {
  // Magnitudes compare like the integers of their bits, NaN above all.
  int32_t largest = 0;
  for (int64_t i = 0; i < k; ++i) {
    const int32_t magnitude = bits_as<int32_t>(x[i]) & 0x7FFFFFFF;
    largest = magnitude > largest ? magnitude : largest;
  }
  const auto bound = bits_as<float>(largest);
  *scale = bound / 127.0F;
  // Below this 1 / bound would overflow; such a row is zero.
  const float inverse = bound < 1e-30F ? 0.0F : 127.0F / bound;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23
  for (int64_t i = 0; i < k; ++i) {
    const float shifted = x[i] * inverse + kRound;
    put(i, bits_as<int32_t>(shifted) - 0x4B400000);
  }
}

}  // namespace
}  // namespace laplace::cpu
