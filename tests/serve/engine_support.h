// Engines over small random models for tests: no LibTorch, no files.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "serve/engine/cpu/cpu_executor.h"
#include "serve/engine/engine.h"

namespace laplace::testing {

inline ModelConfig small_config() {
  ModelConfig config;
  config.vocab_size = 272;
  config.hidden_size = 40;
  config.num_hidden_layers = 2;
  config.num_heads = 4;
  config.head_k_dim = 6;
  config.head_v_dim = 10;
  config.intermediate_size = 52;
  return config;
}

inline constexpr TokenId kSmallEndOfText = 256;

inline EngineModel small_model() {
  const std::vector<std::string> specials = {"<|endoftext|>"};
  return {small_config(), Tokenizer::from_merges({}, specials), kSmallEndOfText};
}

// Weights five times the usual size, so that logits differ and the state matters.
class StrongWeights : public WeightSource {
 public:
  explicit StrongWeights(const ModelConfig& config)
      : config_(config), source_(random_weights(config, 1)) {}
  void read(const std::string& name, int64_t row, float* out) const override {
    source_->read(name, row, out);
    const bool matrix = name.find("norm") == std::string::npos;
    const int64_t n = name.ends_with("conv.weight")   ? config_.conv_kernel
                      : name.ends_with("aug_balance") ? config_.head_k_dim
                      : name.ends_with("out.weight")  ? config_.value_width()
                      : name.ends_with("down.weight") ? config_.intermediate_size
                                                      : config_.hidden_size;
    if (matrix) {
      for (int64_t i = 0; i < n; ++i) out[i] *= 8;
    }
  }
  bool is_bfloat16(const std::string&) const override { return true; }

 private:
  ModelConfig config_;
  std::unique_ptr<WeightSource> source_;
};

inline std::shared_ptr<const CpuModel> small_weights(
    cpu::WeightType type, const cpu::Kernels& kernels = cpu::chosen_kernels()) {
  return std::make_shared<CpuModel>(small_config(), StrongWeights(small_config()), type, kernels,
                                    1);
}

// Everything one sequence of a request got.
struct Heard {
  std::vector<TokenResult> tokens;
  std::string text;
  std::vector<Finish> finishes;
  std::shared_ptr<const SequenceSnapshot> last_snapshot;  // at the end
};

class Listener : public Sink {
 public:
  void on_prompt(std::span<const TokenResult> tokens) override {
    prompt.insert(prompt.end(), tokens.begin(), tokens.end());
  }
  void on_token(int index, const TokenResult& token, std::string_view text) override {
    const std::lock_guard lock(mutex_);
    heard[index].tokens.push_back(token);
    heard[index].text += text;
  }
  void on_snapshot(int index, int64_t offset,
                   std::shared_ptr<const SequenceSnapshot> snapshot) override {
    if (offset >= 0) {
      snapshots[offset] = std::move(snapshot);
    } else {
      heard[index].last_snapshot = std::move(snapshot);
    }
  }
  void on_finish(int index, const Finish& finish) override {
    const std::lock_guard lock(mutex_);
    heard[index].finishes.push_back(finish);
    heard[index].text += finish.text;
    ++finished_;
    done_.notify_all();
  }

  void wait(int count) {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return finished_ >= count; });
  }
  int finished() {
    const std::lock_guard lock(mutex_);
    return finished_;
  }

  std::vector<TokenResult> prompt;
  std::map<int, Heard> heard;
  std::map<int64_t, std::shared_ptr<const SequenceSnapshot>> snapshots;

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  int finished_ = 0;
};

// Bits, not values: NaN equals itself.
inline bool same_bits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

inline bool same(const TokenResult& a, const TokenResult& b) {
  return a.id == b.id && same_bits(a.log_prob, b.log_prob) &&
         std::ranges::equal(a.top, b.top, [](const TokenLogProb& x, const TokenLogProb& y) {
           return x.id == y.id && same_bits(x.log_prob, y.log_prob);
         });
}

inline bool same(const std::vector<TokenResult>& a, const std::vector<TokenResult>& b) {
  return std::ranges::equal(a, b,
                            [](const TokenResult& x, const TokenResult& y) { return same(x, y); });
}

inline bool same(const SequenceSnapshot& a, const SequenceSnapshot& b) {
  const auto sorted = [](std::vector<TokenCount> counts) {
    std::ranges::sort(counts, {}, &TokenCount::id);
    return counts;
  };
  return std::ranges::equal(a.slot, b.slot, same_bits) &&
         std::ranges::equal(a.logits, b.logits, same_bits) && a.position == b.position &&
         sorted(a.counts) == sorted(b.counts);
}

inline std::unique_ptr<Engine> small_engine(const std::shared_ptr<const CpuModel>& weights,
                                            EngineOptions options) {
  std::vector<std::unique_ptr<Executor>> executors;
  for (int r = 0; r < options.replicas; ++r) {
    executors.push_back(std::make_unique<CpuExecutor>(weights, std::max<int64_t>(options.slots, 1),
                                                      std::max(options.threads, 1), true));
  }
  return std::make_unique<Engine>(small_model(), std::move(executors), options);
}

}  // namespace laplace::testing
