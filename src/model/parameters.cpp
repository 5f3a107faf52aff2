// See parameters.h.
#include "model/parameters.h"

#include <ATen/Parallel.h>

#include <cmath>
#include <functional>
#include <numbers>
#include <numeric>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/random.h"

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

// FNV-1a, the number of a parameter's random stream. http://www.isthe.com/chongo/tech/comp/fnv
uint64_t stream_of(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const unsigned char c : name) hash = (hash ^ c) * 0x100000001b3;
  return hash;
}

// Two independent uniforms of 53 bits, the first in (0, 1], the second in [0, 1). Elements 2b and
// 2b + 1 of a parameter come from block b.
std::pair<double, double> uniforms(uint64_t seed, uint64_t stream, uint64_t block) {
  const auto words = philox(seed, block, stream);
  const uint64_t first = uint64_t{words[0]} | (uint64_t{words[1]} << 32);
  const uint64_t second = uint64_t{words[2]} | (uint64_t{words[3]} << 32);
  return {double((first >> 11) + 1) * 0x1p-53, double(second >> 11) * 0x1p-53};
}

// out[j] = element begin + j of what `pair_of` makes of each block of the stream.
template <class PairOf>
void fill(float* out, int64_t begin, int64_t count, uint64_t seed, uint64_t stream,
          const PairOf& pair_of) {
  const int64_t end = begin + count;
  at::parallel_for(begin / 2, (end + 1) / 2, 1 << 14, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const auto [u, w] = uniforms(seed, stream, static_cast<uint64_t>(block));
      const std::pair<double, double> values = pair_of(u, w);
      const int64_t at = 2 * block;
      if (at >= begin) out[at - begin] = static_cast<float>(values.first);
      if (at + 1 < end) out[at + 1 - begin] = static_cast<float>(values.second);
    }
  });
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
  const auto fill_with = [&](const auto& pair_of) {
    fill(data, first_row * spec.row_size(), out.numel(), seed, stream_of(spec.name), pair_of);
  };
  const auto normal = [&](double deviation) {
    fill_with([=](double u, double w) {  // Box and Muller (1958)
      const double radius = deviation * std::sqrt(-2 * std::log(u));
      const double angle = 2 * std::numbers::pi * w;
      return std::pair(radius * std::cos(angle), radius * std::sin(angle));
    });
  };
  switch (spec.init) {
    case Init::kNormal:
      return normal(0.02);
    case Init::kNormalResidual:
      return normal(0.02 / std::sqrt(2.0 * double(config.num_hidden_layers)));
    case Init::kUniformConv: {
      const double bound = 1 / std::sqrt(double(config.conv_kernel));
      return fill_with(
          [=](double u, double w) { return std::pair(bound * (2 * u - 1), bound * (2 * w - 1)); });
    }
    case Init::kOnes:
    case Init::kZeros:
      std::fill_n(data, out.numel(), spec.init == Init::kOnes ? 1.0F : 0.0F);
  }
}

}  // namespace laplace
