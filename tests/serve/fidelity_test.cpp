// The engine generates what the portable model generates: 48 tokens after each of three prompts,
// the likeliest each time, in float32 the same ones. On every instruction set, all prompts in one
// batch, against the portable operators token by token.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <set>

#include "engine_support.h"
#include "ops/simd/targets.h"
#include "serve_support.h"

namespace laplace {
namespace {

using testing::Listener;
using testing::StrongWeights;
using testing::weights_from;

constexpr int64_t kTokens = 48;

ModelConfig fidelity_config() {
  ModelConfig config;
  config.vocab_size = 1000;
  config.hidden_size = 128;
  config.num_hidden_layers = 4;
  config.num_heads = 4;
  config.head_k_dim = 16;
  config.head_v_dim = 32;
  config.intermediate_size = 300;
  return config;
}

std::vector<std::vector<TokenId>> prompts() {
  std::vector<std::vector<TokenId>> out(3);
  for (size_t p = 0; p < out.size(); ++p) {
    for (size_t i = 0; i < 5 + 120 * p; ++i)
      out[p].push_back(TokenId((i * i * 7 + i + 31 * p) % 1000));
  }
  return out;
}

// What the portable operators generate, and the least lead of a token over the second best.
struct Reference {
  std::vector<TokenId> tokens;
  double lead = 1e30;
};

Reference portable(const Decoder& decoder, const std::vector<TokenId>& prompt) {
  Reference out;
  ModelState state = decoder.zero_state(1);
  at::Tensor logits;
  for (const TokenId id : prompt) logits = decoder.step(at::tensor({int64_t{id}}), state);
  for (int64_t t = 0; t < kTokens; ++t) {
    const at::Tensor best = std::get<0>(logits.view(-1).topk(2));
    out.lead = std::min(out.lead, (best[0] - best[1]).item<double>());
    out.tokens.push_back(TokenId(logits.view(-1).argmax().item<int64_t>()));
    logits = decoder.step(at::tensor({int64_t{out.tokens.back()}}), state);
  }
  return out;
}

class PortableOperators {
 public:
  PortableOperators() { ops::set_fused_kernels(false); }
  ~PortableOperators() { ops::set_fused_kernels(before_); }

 private:
  const bool before_ = ops::fused_kernels();
};

std::vector<std::vector<TokenId>> generated(const ModelConfig& config, cpu::WeightType type,
                                            const cpu::Kernels& kernels) {
  const auto weights = std::make_shared<CpuModel>(config, StrongWeights(config), type, kernels, 1);
  std::vector<std::unique_ptr<Executor>> executors;
  executors.push_back(std::make_unique<CpuExecutor>(weights, 3, 2, true));
  Engine engine({config, std::nullopt, -1}, std::move(executors), {});
  std::vector<std::shared_ptr<Listener>> listeners;
  for (const auto& prompt : prompts()) {
    Request request;
    request.prompt = prompt;
    request.sampling.temperature = 0;
    request.max_tokens = kTokens;
    listeners.push_back(std::make_shared<Listener>());
    engine.submit(request, listeners.back());
  }
  std::vector<std::vector<TokenId>> out;
  for (const auto& listener : listeners) {
    listener->wait(1);
    out.emplace_back();
    for (const TokenResult& token : listener->heard[0].tokens) out.back().push_back(token.id);
  }
  return out;
}

TEST(Fidelity, GreedyTokensEqualThePortableModels) {
  const ModelConfig config = fidelity_config();
  const PortableOperators portable_operators;
  const Decoder decoder(config, weights_from(StrongWeights(config), config));
  std::vector<std::vector<TokenId>> want;
  for (const auto& prompt : prompts()) {
    const Reference reference = portable(decoder, prompt);
    // No tie decides, and the text is not one token again and again.
    EXPECT_GT(reference.lead, 1e-3);
    EXPECT_GT(std::set(reference.tokens.begin(), reference.tokens.end()).size(), 20U);
    want.push_back(reference.tokens);
  }
  for (const cpu::Kernels* kernels : cpu::available_kernels()) {
    EXPECT_EQ(generated(config, cpu::WeightType::kFloat32, *kernels), want) << kernels->name;
  }
}

}  // namespace
}  // namespace laplace
