// Random weights without a file: see weights.h.
#include <bit>
#include <cmath>

#include "base/error.h"
#include "base/random.h"
#include "serve/engine/weights.h"

namespace laplace {

namespace {

// Uniform with the given deviation; bfloat16 by cutting the low bits.
class RandomWeights : public WeightSource {
 public:
  RandomWeights(const ModelConfig& config, uint64_t seed) : config_(config), seed_(seed) {}

  void read(const std::string& name, int64_t row, float* out) const override {
    const auto ends = [&](std::string_view end) { return name.ends_with(end); };
    const int64_t D = config_.hidden_size;
    if (ends("norm.weight")) {
      const int64_t n = ends("head_norm.weight") ? config_.head_v_dim : D;
      std::fill_n(out, n, 1.0F);
      return;
    }
    if (ends("aug_balance")) return fill(name, row, config_.head_k_dim, 0.1, out);
    if (ends("conv.weight")) return fill(name, row, config_.conv_kernel, 0.3, out);
    const double residual = 0.02 / std::sqrt(2.0 * double(config_.num_hidden_layers));
    if (ends("out.weight")) return fill(name, row, config_.value_width(), residual, out);
    if (ends("down.weight")) return fill(name, row, config_.intermediate_size, residual, out);
    fill(name, row, D, 0.02, out);
  }

  bool is_bfloat16(const std::string&) const override { return true; }

 private:
  // A multiplicative generator per row: a thousand million values take seconds.
  void fill(const std::string& name, int64_t row, int64_t n, double deviation, float* out) const {
    uint64_t state = random_bits(seed_, std::hash<std::string>()(name), uint64_t(row)) | 1;
    const auto scale = float(deviation * std::sqrt(3.0) * 0x1p-31);
    for (int64_t i = 0; i < n; ++i) {
      state *= 0xda942042e4dd58b5;
      const auto value = float(int32_t(state >> 32)) * scale;
      out[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(value) & 0xFFFF0000U);
    }
  }

  const ModelConfig config_;
  const uint64_t seed_;
};

}  // namespace

std::unique_ptr<WeightSource> random_weights(const ModelConfig& config, uint64_t seed) {
  return std::make_unique<RandomWeights>(config, seed);
}

}  // namespace laplace
