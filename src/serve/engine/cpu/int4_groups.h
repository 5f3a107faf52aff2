// int4 weights with a scale for 32 of them along K, widened to float32 as they are read; x stays
// float32. A step is such a group: the scales as bfloat16, as in Bfloat16Widened, then [4][width]
// words of eight whole numbers from 0 to 15, the first lowest; eight less is the weight.
#pragma once

#include "serve/engine/cpu/gemm.h"

namespace laplace::cpu {
namespace {

struct Int4 {
  using Acc = Floats;
  using Weight = Floats;
  static constexpr bool kHeader = false, kInteger = false;
  static constexpr int kVectors = Float32::kVectors, kMaxRows = 5, kGroup = 1, kGroupOfThree = 1;
  static constexpr int kRounds = 4, kInner = 8;
  static constexpr int64_t kStep = kRounds * kInner, kStepX = 4 * kStep;
  static constexpr int64_t kWidth = int64_t{kVectors} * kLanes;
  static constexpr int64_t kStepBytes = 2 * kWidth + kRounds * 4 * kWidth;

  static void load(const std::byte* w, int round, int part, Floats* out) {
    Bfloat16Widened::load(w, 0, 0, out);  // the scales
    const std::byte* const words = w + 2 * kWidth + round * 4 * kWidth;
    for (int v = 0; v < kVectors; ++v) {
      out[v] *= whole(cpu::load<Words>(words + v * sizeof(Words)) >> 4 * part);
    }
  }
  // The number in the low four bits, less eight.
  static Floats whole(Words bits) {
#if defined(__AVX512F__)
    const Floats numbers = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
    return Floats(_mm512_maskz_permutexvar_ps(0xFFFF, __m512i(bits), __m512(numbers)));
#else
    return __builtin_convertvector(Ints(bits & 15U), Floats) - 8.0F;
#endif
  }
  static Floats broadcast(const std::byte* x) { return splat<Floats>(cpu::load<float>(x)); }
  static Floats mac(Floats acc, Floats x, Floats w) { return fma(x, w, acc); }

  // To the nearest whole number from -8 to 7.
  static Floats nearest(Floats values) {
    const Floats low = splat<Floats>(-8.0F), high = splat<Floats>(7.0F);
    values = values < low ? low : values;
    values = values > high ? high : values;
    const Floats round = splat<Floats>(12582912.0F);  // 1.5 * 2^23
    return (values + round) - round;
  }
  // The numbers of a group for one scale; returns the sum of the squared errors.
  static float numbers_of(const float* w, float scale, float* numbers) {
    const float inverse = 1.0F / scale;
    Floats errors{};
    for (int64_t i = 0; i < kStep; i += kLanes) {
      const Floats values = cpu::load<Floats>(w + i), q = nearest(values * inverse);
      const Floats missed = values - q * scale;
      errors += missed * missed;
      store(numbers + i, q);
    }
    return sum(errors);
  }
  // The numbers of a group, and its scale: of those that bring the largest weight to about -8, the
  // one with the least squared error. NaN and infinity go into the scale.
  static uint16_t quantise_group(const float* w, float* numbers) {
    int32_t most = 0;
    float largest = 0;
    for (int64_t i = 0; i < kStep; ++i) {
      const int32_t magnitude = bits_as<int32_t>(w[i]) & 0x7FFFFFFF;
      largest = magnitude > most ? w[i] : largest;
      most = magnitude > most ? magnitude : most;
    }
    const bool tiny = most < bits_as<int32_t>(1e-30F);  // 1 / scale would overflow
    if (tiny || most >= 0x7F800000) {
      for (int64_t i = 0; i < kStep; ++i) numbers[i] = 0;
      return tiny ? uint16_t{0} : to_bfloat16(largest);
    }
    uint16_t best = 0;
    float least = __builtin_inff(), tried[kStep];
    for (const float steps : {-8.0F, -7.25F, -8.75F}) {
      const uint16_t scale = to_bfloat16(largest / steps);
      const float error = numbers_of(w, bits_as<float>(uint32_t{scale} << 16), tried);
      if (best != 0 && !(error < least)) continue;
      least = error;
      best = scale;
      for (int64_t i = 0; i < kStep; ++i) numbers[i] = tried[i];
    }
    return best;
  }
  static void pack(const float* const* rows, int64_t k, std::byte* panel, float*) {
    for (int64_t c = 0; c < kWidth; ++c) {
      if (rows[c] == nullptr) continue;
      const int64_t vector = c / kLanes, lane = c % kLanes;
      const int64_t scale_at = vector / 2 * (2 * kLanes) + 2 * lane + vector % 2;
      for (int64_t first = 0; first < k; first += kStep) {
        std::byte* const step = panel + first / kStep * kStepBytes;
        float group[kStep] = {}, numbers[kStep];
        const int64_t n = k - first < kStep ? k - first : kStep;
        for (int64_t i = 0; i < n; ++i) group[i] = rows[c][first + i];
        store(step + 2 * scale_at, quantise_group(group, numbers));
        for (int round = 0; round < kRounds; ++round) {
          uint32_t word = 0;
          for (int i = 0; i < kInner; ++i) {
            word |= (uint32_t(int32_t(numbers[round * kInner + i]) + 8) & 15U) << 4 * i;
          }
          store(step + 2 * kWidth + 4 * (round * kWidth + c), word);
        }
      }
    }
  }
};

}  // namespace
}  // namespace laplace::cpu
