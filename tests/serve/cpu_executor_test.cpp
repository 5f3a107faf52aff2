// The CPU executor against the golden vectors and the portable decoder, and against itself: a row's
// bits do not depend on what else is in the step, on how a sequence is cut, or on threads.
#include "serve/engine/cpu/cpu_executor.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "serve_support.h"

namespace laplace {
namespace {

using testing::golden_path;
using testing::GoldenFile;
using testing::ids_of;
using testing::max_error;
using testing::rms_error;

std::shared_ptr<const CpuModel> model_of(const std::string& name, cpu::WeightType type,
                                         const cpu::Kernels& kernels) {
  const ModelConfig config = ModelConfig::load(golden_path(name));
  return std::make_shared<CpuModel>(config, *open_weights(golden_path(name), config), type, kernels,
                                    2);
}

at::Tensor tensor_of(const std::vector<float>& values) {
  return at::tensor(values, at::kFloat).to(at::kDouble);
}

// The logits [n,V] of every token of a sequence in one step.
std::vector<float> logits_of(CpuExecutor& executor, std::span<const TokenId> ids) {
  std::vector<int64_t> rows(ids.size());
  std::iota(rows.begin(), rows.end(), 0);
  std::vector<float> logits(ids.size() * size_t(executor.config().vocab_size));
  executor.zero(0);
  const Segment segment{0, ids};
  executor.step({&segment, 1}, rows, logits.data());
  return logits;
}

class EveryKernel : public ::testing::TestWithParam<const cpu::Kernels*> {};

// What the portable model in float32 is held to: docs and tests/data/golden/README.md.
TEST_P(EveryKernel, GoldenLogitsAndGreedyTokens) {
  const GoldenFile file("model_decode.safetensors");
  const std::vector<TokenId> prompt = ids_of(file.tensor("", "prompt"));
  const std::vector<TokenId> want = ids_of(file.tensor("", "generated"));
  const at::Tensor ref = file.tensor("", "logits");
  CpuExecutor executor(model_of("tiny", cpu::WeightType::kFloat32, *GetParam()), 2, 2, true);
  const auto V = size_t(executor.config().vocab_size);
  std::vector<float> logits = logits_of(executor, prompt);
  logits.erase(logits.begin(), logits.end() - int64_t(V));
  for (size_t t = 0; t < want.size(); ++t) {
    EXPECT_LT(max_error(tensor_of(logits), ref[int64_t(t)]), 2e-5) << t;
    const TokenId id = TokenId(std::ranges::max_element(logits) - logits.begin());
    EXPECT_EQ(id, want[t]);
    const Segment segment{0, {&id, 1}};
    const int64_t row = 0;
    executor.step({&segment, 1}, {&row, 1}, logits.data());
  }
}

TEST_P(EveryKernel, RoundedWeightsAreNearFloat32) {
  std::vector<TokenId> ids;
  for (int i = 0; i < 200; ++i) ids.push_back((i * 31 + i * i / 7) % 97);
  const auto exact_model = model_of("tiny_bf16", cpu::WeightType::kFloat32, *GetParam());
  CpuExecutor exact(exact_model, 1, 1, false);
  const at::Tensor ref = tensor_of(logits_of(exact, ids));
  for (const auto& [type, bound] : {std::pair{cpu::WeightType::kBfloat16, 2e-2},
                                    {cpu::WeightType::kInt8, 5e-2},
                                    {cpu::WeightType::kInt4, 2e-1}}) {
    CpuExecutor rounded(model_of("tiny_bf16", type, *GetParam()), 1, 2, false);
    EXPECT_LT(rms_error(tensor_of(logits_of(rounded, ids)), ref), bound) << int(type);
  }
}

// The weights' shapes leave rests in every direction: odd sizes, panels and vectors not full.
TEST_P(EveryKernel, OddShapesAgreeWithTheDecoder) {
  ModelConfig config = ModelConfig::load(golden_path("tiny"));
  config.hidden_size = 37;
  config.num_heads = 3;
  config.num_norm_tiers = 3;
  config.head_k_dim = 5;
  config.head_v_dim = 11;
  config.intermediate_size = 45;
  config.vocab_size = 101;
  config.conv_kernel = 3;
  const auto source = random_weights(config, 3);
  const Decoder decoder(config, testing::weights_from(*source, config));
  std::vector<TokenId> ids;
  for (int i = 0; i < 70; ++i) ids.push_back((i * 31 + i * i / 7) % 101);
  const std::vector<int64_t> wide(ids.begin(), ids.end());
  const at::Tensor ref =
      decoder.logits(decoder.hidden(at::tensor(wide).unsqueeze(0))).to(at::kDouble).view({-1});
  for (const auto& [type, bound] : {std::pair{cpu::WeightType::kFloat32, 1e-6},
                                    {cpu::WeightType::kBfloat16, 1e-2},
                                    {cpu::WeightType::kInt8, 3e-2},
                                    {cpu::WeightType::kInt4, 2e-1}}) {
    const auto model = std::make_shared<CpuModel>(config, *source, type, *GetParam(), 2);
    CpuExecutor executor(model, 1, 2, true);
    EXPECT_LT(rms_error(tensor_of(logits_of(executor, ids)), ref), bound) << int(type);
  }
}

// Four sequences, cut and mixed at random, against each alone token by token.
TEST_P(EveryKernel, BitsDoNotDependOnTheStep) {
  constexpr int kSequences = 4, kTokens = 60;
  std::mt19937 random(5);
  for (const auto type : {cpu::WeightType::kFloat32, cpu::WeightType::kBfloat16,
                          cpu::WeightType::kInt8, cpu::WeightType::kInt4}) {
    const auto model = model_of("tiny", type, *GetParam());
    const auto V = size_t(model->config().vocab_size);
    std::vector<std::vector<TokenId>> ids(kSequences);
    std::vector<std::vector<float>> want(kSequences);
    for (int s = 0; s < kSequences; ++s) {
      CpuExecutor alone(model, 1, 1, true);
      alone.zero(0);
      for (int t = 0; t < kTokens; ++t) {
        ids[size_t(s)].push_back(TokenId(random() % V));
        const Segment segment{0, {&ids[size_t(s)].back(), 1}};
        const int64_t row = 0;
        std::vector<float> logits(V);
        alone.step({&segment, 1}, {&row, 1}, logits.data());
        want[size_t(s)].insert(want[size_t(s)].end(), logits.begin(), logits.end());
      }
    }
    for (const int threads : {1, 2, 3}) {
      CpuExecutor together(model, kSequences, threads, true);
      std::vector<size_t> fed(kSequences);
      for (int s = 0; s < kSequences; ++s) together.zero(s);
      while (std::ranges::min(fed) < kTokens) {
        std::vector<Segment> segments;
        std::vector<int64_t> rows;
        std::vector<std::pair<size_t, size_t>> which;  // sequence, token
        int64_t row = 0;
        for (size_t s = 0; s < kSequences; ++s) {
          const size_t count = std::min<size_t>(random() % 9, kTokens - fed[s]);
          if (count == 0) continue;
          segments.push_back({int64_t(s), std::span(ids[s]).subspan(fed[s], count)});
          for (size_t i = 0; i < count; ++i, ++row) {
            if (random() % 2 == 0) continue;
            rows.push_back(row);
            which.emplace_back(s, fed[s] + i);
          }
          fed[s] += count;
        }
        std::vector<float> logits(rows.size() * V);
        together.step(segments, rows, logits.data());
        for (size_t i = 0; i < which.size(); ++i) {
          const auto [s, t] = which[i];
          const auto got = std::span(logits).subspan(i * V, V);
          ASSERT_TRUE(std::ranges::equal(got, std::span(want[s]).subspan(t * V, V)))
              << "sequence " << s << " token " << t << " type " << int(type);
        }
      }
    }
  }
}

// A prompt longer than a pass gives what single tokens give.
TEST_P(EveryKernel, LongPromptsTakeSeveralPasses) {
  const auto model = model_of("tiny", cpu::WeightType::kBfloat16, *GetParam());
  const auto V = size_t(model->config().vocab_size);
  std::vector<TokenId> ids;
  for (size_t i = 0; i < 1200; ++i) ids.push_back(TokenId((i * 31 + i / 7) % V));
  CpuExecutor whole(model, 1, 2, true), single(model, 1, 1, true);
  const std::vector<float> got = logits_of(whole, ids);
  single.zero(0);
  std::vector<float> logits(V);
  for (size_t i = 0; i < ids.size(); ++i) {
    const Segment segment{0, {&ids[i], 1}};
    const int64_t row = 0;
    single.step({&segment, 1}, {&row, 1}, logits.data());
    ASSERT_TRUE(std::ranges::equal(logits, std::span(got).subspan(i * V, V))) << i;
  }
  EXPECT_TRUE(std::ranges::all_of(got, [](float x) { return std::isfinite(x); }));
}

// x [K] times W^T, W [N,K].
std::vector<float> product_of(const cpu::Kernels& kernels, cpu::WeightType type,
                              const std::vector<float>& w, const std::vector<float>& x) {
  const cpu::Gemm& gemm = kernels.gemm[size_t(type)];
  const auto K = int64_t(x.size()), N = int64_t(w.size() / x.size());
  const int64_t panels = (N + gemm.width - 1) / gemm.width;
  PageBuffer packed(size_t(panels * gemm.panel_bytes(K))), row(4096), scratch(1 << 20);
  std::vector<float> scales(size_t(panels * gemm.width)), y(static_cast<size_t>(N));
  for (int64_t p = 0; p < panels; ++p) {
    std::vector<const float*> rows;
    for (int64_t c = p * gemm.width; c < (p + 1) * gemm.width; ++c) {
      rows.push_back(c < N ? w.data() + c * K : nullptr);
    }
    gemm.pack(rows.data(), K, packed.data() + p * gemm.panel_bytes(K),
              scales.data() + p * gemm.width);
  }
  float scale = 0;
  if (gemm.prepare == nullptr) {
    std::ranges::copy(x, row.as<float>());
  } else {
    gemm.prepare(x.data(), K, row.data(), &scale);
  }
  gemm.run({packed.data(), gemm.panel_bytes(K), scales.data(), N, gemm.steps_of(K), row.data(),
            4096, &scale, 1, cpu::Epilogue::kStore, y.data(), N},
           0, panels, scratch.data());
  return y;
}

std::vector<float> normal_values(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<size_t>(count));
  for (float& value : out) value = normal(random);
  return out;
}

TEST(Kernels, Int8IsTheSameOnEveryInstructionSet) {
  const std::vector<float> w = normal_values(301 * 70, 2), x = normal_values(301, 3);
  std::vector<float> first;
  for (const cpu::Kernels* kernels : cpu::available_kernels()) {
    const std::vector<float> y = product_of(*kernels, cpu::WeightType::kInt8, w, x);
    if (first.empty()) first = y;
    EXPECT_EQ(y, first) << kernels->name;
  }
}

// The product with a unit vector is a column of the weights as they are packed.
TEST_P(EveryKernel, Int4WeightsAreNearAndNaNIsNotLost) {
  constexpr int64_t kK = 75, kN = 70;
  std::vector<float> w = normal_values(kK * kN, 4);
  for (int64_t k = 0; k < kK; ++k) w[size_t(3 * kK + k)] = 0;  // a row of zeros
  w[size_t(5 * kK + 40)] = 1e25F;                              // its square is infinite
  double missed = 0, all = 0;
  for (int64_t k = 0; k < kK; ++k) {
    std::vector<float> unit(kK);
    unit[size_t(k)] = 1;
    const auto column = product_of(*GetParam(), cpu::WeightType::kInt4, w, unit);
    EXPECT_EQ(column[3], 0);
    for (int64_t n = 0; n < kN; ++n) {
      if (n == 5 && k >= 32 && k < 64) continue;  // beside the large one they are zero
      const double want = w[size_t(n * kK + k)];
      missed += (column[size_t(n)] - want) * (column[size_t(n)] - want);
      all += want * want;
    }
    if (k == 40) {
      EXPECT_NEAR(column[5] / 1e25F, 1, 0.01);
    }
  }
  EXPECT_LT(std::sqrt(missed / all), 0.09);
  w[7] = std::numeric_limits<float>::quiet_NaN();
  const auto y = product_of(*GetParam(), cpu::WeightType::kInt4, w, std::vector<float>(kK, 1.0F));
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_TRUE(std::isfinite(y[1]));
}

INSTANTIATE_TEST_SUITE_P(Kernels, EveryKernel, ::testing::ValuesIn(cpu::available_kernels()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace laplace
