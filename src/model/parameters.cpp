// See parameters.h.
#include "model/parameters.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numbers>
#include <numeric>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/random.h"
#include "base/strings.h"

namespace laplace {

int64_t ParameterSpec::numel() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

namespace {

ParameterSpec adamw(std::string name, std::vector<int64_t> shape, Init init, int64_t layer = -1) {
  const int64_t rows = shape[0];
  return {std::move(name), std::move(shape), ParameterRole::kAdamW, {rows}, init, layer};
}

// A matrix [blocks.back(), columns] of a layer.
ParameterSpec muon(std::string name, std::vector<int64_t> blocks, int64_t columns, Init init,
                   int64_t layer) {
  const int64_t rows = blocks.back();
  return {std::move(name), {rows, columns}, ParameterRole::kMuon, std::move(blocks), init, layer};
}

void add_layer(const ModelConfig& c, int64_t i, std::vector<ParameterSpec>* table) {
  const auto name = [i](const char* rest) { return cat("layers.", i, ".", rest); };
  const int64_t width = c.hidden_size;
  const int64_t k = c.num_heads * c.head_k_dim;
  const int64_t v = c.value_width();
  const int64_t f = c.intermediate_size;
  table->push_back(adamw(name("attn_norm.weight"), {width}, Init::kOnes, i));
  table->push_back(adamw(name("conv.weight"), {width, c.conv_kernel}, Init::kUniformConv, i));
  table->push_back(
      muon(name("qkvg.weight"), {k, 2 * k, 2 * k + v, 2 * k + 2 * v}, width, Init::kNormal, i));
  table->push_back(adamw(name("aug_balance"), {c.num_heads, c.head_k_dim}, Init::kZeros, i));
  table->push_back(
      adamw(name("head_norm.weight"), {c.num_norm_tiers, c.head_v_dim}, Init::kOnes, i));
  table->push_back(muon(name("out.weight"), {width}, v, Init::kNormalResidual, i));
  table->push_back(adamw(name("mlp_norm.weight"), {width}, Init::kOnes, i));
  table->push_back(muon(name("gate_up.weight"), {f, 2 * f}, width, Init::kNormal, i));
  table->push_back(muon(name("down.weight"), {width}, f, Init::kNormalResidual, i));
}

// out[j] = element begin + j of the parameter. Elements 4b to 4b + 3 come from block b of its
// stream, as `pair_of` makes two of two words. 32 bits each: the normal's tail then ends at 6.7
// deviations, which one value in 5e10 would pass.
template <class PairOf>
void fill(float* out, int64_t begin, int64_t count, uint64_t seed, uint64_t stream,
          const PairOf& pair_of) {
  const int64_t end = begin + count;
  at::parallel_for(begin / 4, (end + 3) / 4, 1 << 13, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const auto words = philox(seed, static_cast<uint64_t>(block), stream);
      const auto [a, b] = pair_of(words[0], words[1]);
      const auto [c, d] = pair_of(words[2], words[3]);
      const std::array<float, 4> values = {a, b, c, d};
      const int64_t low = std::max(begin, 4 * block);
      const int64_t high = std::min(end, 4 * block + 4);
      for (int64_t i = low; i < high; ++i) out[i - begin] = values[static_cast<size_t>(i % 4)];
    }
  });
}

// Two independent values of N(0, deviation²): Box and Muller (1958).
std::pair<float, float> normal_pair(uint32_t first, uint32_t second, float deviation) {
  const auto u = static_cast<float>((double(first) + 0.5) * 0x1p-32);  // in (0, 1]
  const auto angle = static_cast<float>(2 * std::numbers::pi * 0x1p-32 * double(second));
  const float radius = deviation * std::sqrt(-2 * std::log(u));
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

// Two independent values, uniform in [-bound, bound].
std::pair<float, float> uniform_pair(uint32_t first, uint32_t second, float bound) {
  const auto scaled = [bound](uint32_t word) {
    return static_cast<float>(bound * (double(word) * 0x1p-31 - 1));
  };
  return {scaled(first), scaled(second)};
}

}  // namespace

std::vector<ParameterSpec> parameter_table(const ModelConfig& config) {
  std::vector<ParameterSpec> table;
  const std::vector<int64_t> vocabulary = {config.vocab_size, config.hidden_size};
  table.push_back(adamw("embed.weight", vocabulary, Init::kNormal));
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) add_layer(config, i, &table);
  table.push_back(adamw("norm.weight", {config.hidden_size}, Init::kOnes));
  table.push_back(adamw("head.weight", vocabulary, Init::kNormal));
  return table;
}

void init_parameter(const ParameterSpec& spec, const ModelConfig& config, uint64_t seed,
                    const at::Tensor& out, int64_t first_row) {
  const bool shape_fits = out.defined() && out.dim() == int64_t(spec.shape.size()) &&
                          out.sizes().slice(1) == at::IntArrayRef(spec.shape).slice(1) &&
                          first_row >= 0 && first_row <= spec.rows() - out.size(0);
  if (!shape_fits || out.scalar_type() != at::kFloat || !out.device().is_cpu() ||
      !out.is_contiguous()) {
    fail("init_parameter of ", spec.name, " needs contiguous float32 rows of its shape on the CPU");
  }
  auto* const data = out.mutable_data_ptr<float>();
  const auto fill_with = [&](auto pair_of, double scale) {
    fill(data, first_row * spec.row_size(), out.numel(), seed, /*stream=*/fnv1a(spec.name),
         [=](uint32_t u, uint32_t w) { return pair_of(u, w, static_cast<float>(scale)); });
  };
  switch (spec.init) {
    case Init::kNormal:
      return fill_with(normal_pair, 0.02);
    case Init::kNormalResidual:
      return fill_with(normal_pair, 0.02 / std::sqrt(2.0 * double(config.num_hidden_layers)));
    case Init::kUniformConv:
      return fill_with(uniform_pair, 1 / std::sqrt(double(config.conv_kernel)));
    case Init::kOnes:
    case Init::kZeros:
      std::fill_n(data, out.numel(), spec.init == Init::kOnes ? 1.0F : 0.0F);
  }
}

}  // namespace laplace
