// The kernels in plain C++: every processor; the compiler's vectors. Without fused multiply-add in
// the base instruction set (x86-64), products are rounded before they are added.
#include "serve/engine/cpu/kernel_table.h"

namespace laplace::cpu {
namespace {

// int8 weights: [K][width]; x as int8.
struct Int8 : OnePart {
  using Acc = Ints;
  using Weight = Ints;
  using Bytes [[gnu::vector_size(kLanes)]] = int8_t;
  static constexpr bool kHeader = false, kInteger = true;
  static constexpr int kVectors = 2, kMaxRows = 6, kGroup = 4, kGroupOfThree = 1;
  static constexpr int64_t kStep = 1, kStepBytes = kVectors * kLanes, kStepX = 1;

  static void load(const std::byte* w, int, int, Ints* out) {
    for (int v = 0; v < kVectors; ++v) {
      out[v] = __builtin_convertvector(cpu::load<Bytes>(w + v * sizeof(Bytes)), Ints);
    }
  }
  static Ints broadcast(const std::byte* x) { return Ints{} + cpu::load<int8_t>(x); }
  static Ints mac(Ints acc, Ints x, Ints w) { return acc + x * w; }

  static void pack(const float* const* rows, int64_t k, std::byte* panel, float* scales) {
    constexpr int64_t kWidth = Tiles<Int8>::kWidth;
    for (int64_t c = 0; c < kWidth; ++c) {
      scales[c] = 0;
      if (rows[c] == nullptr) continue;
      quantise(rows[c], k, &scales[c],
               [&](int64_t i, int32_t q) { panel[i * kWidth + c] = std::byte(q); });
    }
  }
  static void prepare(const float* x, int64_t k, std::byte* out, float* scale) {
    quantise(x, k, scale, [&](int64_t i, int32_t q) { out[i] = std::byte(q); });
  }
};

}  // namespace

const Kernels& portable_kernels() {
  static constexpr Kernels kKernels = kernels_of<Bfloat16Widened, Int8>("portable", nullptr);
  return kKernels;
}

}  // namespace laplace::cpu
