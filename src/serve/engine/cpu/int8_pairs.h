// int8 products of pairs, for AVX2 and AVX-512 without VNNI: bytes are widened to 16 bits, then two
// neighbouring products are added into 32 bits. Nothing can saturate: 2 * 127 * 127 per step.
#pragma once

#include "serve/engine/cpu/gemm.h"

namespace laplace::cpu {
namespace {

// Weights [K/2][width][2] as int8; x as int16.
struct Int8Pairs : OnePart {
  using Acc = Ints;
  using Weight = Ints;
  static constexpr bool kHeader = false, kInteger = true;
  static constexpr int kVectors = Float32::kVectors, kMaxRows = 6, kGroup = Float32::kGroup;
  static constexpr int kGroupOfThree = 1;
  static constexpr int64_t kStep = 2, kStepBytes = 2 * kVectors * kLanes, kStepX = 4;

  static void load(const std::byte* w, int, int, Ints* out) {
    for (int v = 0; v < kVectors; ++v) {
#if defined(__AVX512BW__)
      out[v] = Ints(_mm512_cvtepi8_epi16(cpu::load<__m256i>(w + v * 2 * kLanes)));
#else
      out[v] = Ints(_mm256_cvtepi8_epi16(cpu::load<__m128i>(w + v * 2 * kLanes)));
#endif
    }
  }
  static Ints broadcast(const std::byte* x) { return Ints{} + cpu::load<int32_t>(x); }
  static Ints mac(Ints acc, Ints x, Ints w) {
#if defined(__AVX512BW__)
    return acc + Ints(_mm512_madd_epi16(__m512i(w), __m512i(x)));
#else
    return acc + Ints(_mm256_madd_epi16(__m256i(w), __m256i(x)));
#endif
  }

  static void pack(const float* const* rows, int64_t k, std::byte* panel, float* scales) {
    constexpr int64_t kWidth = Tiles<Int8Pairs>::kWidth;
    for (int64_t c = 0; c < kWidth; ++c) {
      scales[c] = 0;
      if (rows[c] == nullptr) continue;
      quantise(rows[c], k, &scales[c], [&](int64_t i, int32_t q) {
        panel[(i / 2 * kWidth + c) * 2 + i % 2] = std::byte(q);
      });
    }
  }
  static void prepare(const float* x, int64_t k, std::byte* out, float* scale) {
    auto* const values = reinterpret_cast<int16_t*>(out);
    quantise(x, k, scale, [&](int64_t i, int32_t q) { values[i] = int16_t(q); });
  }
};

}  // namespace
}  // namespace laplace::cpu
