// The kernels for AVX-512 with BF16 and VNNI. bfloat16: x is rounded to bfloat16 and pairs are
// multiplied by VDPBF16PS. int8: four products a lane by VPDPBUSD.
#include "serve/engine/cpu/kernel_table.h"

namespace laplace::cpu {
namespace {

// Weights [K/2][width][2]; x as bfloat16.
struct Bfloat16Pairs : OnePart {
  using Acc = Floats;
  using Weight = __m512bh;
  static constexpr bool kHeader = false, kInteger = false;
  static constexpr int kVectors = 4, kMaxRows = 6, kGroup = 2, kGroupOfThree = 1;
  static constexpr int64_t kStep = 2, kStepBytes = 4 * kVectors * kLanes, kStepX = 4;

  static void load(const std::byte* w, int, int, __m512bh* out) {
    for (int v = 0; v < kVectors; ++v) out[v] = cpu::load<__m512bh>(w + v * sizeof(__m512bh));
  }
  static __m512bh broadcast(const std::byte* x) {
    return bits_as<__m512bh>(Ints{} + cpu::load<int32_t>(x));
  }
  static Floats mac(Floats acc, __m512bh x, __m512bh w) {
    return Floats(_mm512_dpbf16_ps(__m512(acc), x, w));
  }

  static void pack(const float* const* rows, int64_t k, std::byte* panel, float*) {
    constexpr int64_t kWidth = Tiles<Bfloat16Pairs>::kWidth;
    auto* const out = reinterpret_cast<uint16_t*>(panel);
    for (int64_t c = 0; c < kWidth; ++c) {
      if (rows[c] == nullptr) continue;
      for (int64_t i = 0; i < k; ++i) {
        out[(i / 2 * kWidth + c) * 2 + i % 2] = to_bfloat16(rows[c][i]);
      }
    }
  }
  static void prepare(const float* x, int64_t k, std::byte* out, float*) {
    auto* const values = reinterpret_cast<uint16_t*>(out);
    for (int64_t i = 0; i < k; ++i) values[i] = to_bfloat16(x[i]);
  }
};

// Weights [K/4][width][4] as int8; x as uint8, 128 too large. What that adds to a column, 128 times
// the sum of its weights, is taken off in the panel's header, where accumulators begin.
struct Int8Quads : OnePart {
  using Acc = Ints;
  using Weight = Ints;
  static constexpr bool kHeader = true, kInteger = true;
  static constexpr int kVectors = 4, kMaxRows = 6, kGroup = 2, kGroupOfThree = 1;
  static constexpr int64_t kStep = 4, kStepBytes = 4 * kVectors * kLanes, kStepX = 4;

  static void load(const std::byte* w, int, int, Ints* out) {
    for (int v = 0; v < kVectors; ++v) out[v] = cpu::load<Ints>(w + v * sizeof(Ints));
  }
  static Ints broadcast(const std::byte* x) { return Ints{} + cpu::load<int32_t>(x); }
  static Ints mac(Ints acc, Ints x, Ints w) {
    return Ints(_mm512_dpbusd_epi32(__m512i(acc), __m512i(x), __m512i(w)));
  }

  static void pack(const float* const* rows, int64_t k, std::byte* panel, float* scales) {
    constexpr int64_t kWidth = Tiles<Int8Quads>::kWidth;
    auto* const header = reinterpret_cast<int32_t*>(panel);
    std::byte* const out = panel + 4 * kWidth;
    for (int64_t c = 0; c < kWidth; ++c) {
      scales[c] = 0;
      header[c] = 0;
      if (rows[c] == nullptr) continue;
      quantise(rows[c], k, &scales[c], [&](int64_t i, int32_t q) {
        header[c] -= 128 * q;
        out[(i / 4 * kWidth + c) * 4 + i % 4] = std::byte(q);
      });
    }
  }
  static void prepare(const float* x, int64_t k, std::byte* out, float* scale) {
    quantise(x, k, scale, [&](int64_t i, int32_t q) { out[i] = std::byte(q + 128); });
  }
};

}  // namespace

const Kernels& avx512_bf16_kernels() {
  static constexpr Kernels kKernels =
      kernels_of<Bfloat16Pairs, Int8Quads>("avx512_bf16", Bfloat16Pairs::prepare);
  return kKernels;
}

}  // namespace laplace::cpu
