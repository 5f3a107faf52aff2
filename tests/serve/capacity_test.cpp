// How many sequences are taken at a time, what those that wait cost, and memory that does not grow
// with the tokens that are generated.
#include <gmock/gmock.h>

#include <condition_variable>
#include <cstdlib>
#include <thread>

#include "base/error.h"
#include "base/process.h"
#include "engine_support.h"
#include "serve/engine/open_engine.h"

namespace laplace {
namespace {

using testing::kSmallEndOfText;
using testing::Listener;
using testing::small_config;
using testing::small_engine;
using testing::small_weights;

Request endless() {
  Request request;
  request.prompt = {10, 20, 30};
  request.max_tokens = int64_t{1} << 40;
  request.ignore_end_of_text = true;
  return request;
}

std::shared_ptr<const CpuModel> weights_of(const ModelConfig& config) {
  return std::make_shared<CpuModel>(config, *random_weights(config, 1), cpu::WeightType::kBfloat16,
                                    cpu::chosen_kernels(), 1);
}

// Until something is so; a minute at most.
template <class Condition>
bool soon(const Condition& condition) {
  for (int i = 0; i < 6000 && !condition(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return condition();
}

// Memory for seven sequences of 5 MB and a half: exactly seven run, the eighth waits and takes the
// first slot that comes free.
TEST(Capacity, AsManySequencesAsMemoryHoldsAndOneMoreWaits) {
  ModelConfig config = small_config();
  config.head_k_dim = 256;
  config.head_v_dim = 640;
  const auto weights = weights_of(config);
  constexpr int64_t kFit = 7;
  const auto with_memory_for_them = [&](int64_t slots) {
    EngineOptions options{.threads = 1, .slots = slots, .quiet = true};
    const double bytes = double(CpuExecutor::workspace_bytes(config)) +
                         (double(kFit) + 0.5) * double(CpuExecutor::sequence_bytes(config));
    options.memory_share = bytes / double(available_memory());
    return options;
  };
  EXPECT_THROW(make_cpu_executors(weights, with_memory_for_them(kFit + 1)), Error);
  const EngineOptions options = with_memory_for_them(0);
  Engine engine({config, std::nullopt, -1}, make_cpu_executors(weights, options), options);
  ASSERT_EQ(engine.slots(), kFit);

  std::vector<std::shared_ptr<Listener>> listeners;
  std::vector<RequestId> ids;
  for (int64_t i = 0; i < kFit + 1; ++i) {
    listeners.push_back(std::make_shared<Listener>());
    ids.push_back(engine.submit(endless(), listeners.back()));
  }
  EXPECT_TRUE(soon([&] { return engine.stats().last_decode_rows == kFit; }));
  EXPECT_EQ(engine.stats().running, kFit);
  EXPECT_EQ(engine.stats().waiting, 1);
  engine.cancel(ids[2]);
  EXPECT_TRUE(soon([&] { return engine.stats().waiting == 0; }));
  EXPECT_TRUE(soon([&] { return engine.stats().last_decode_rows == kFit; }));
  EXPECT_EQ(engine.stats().running, kFit);
  engine.stop();
  for (const auto& listener : listeners) {
    ASSERT_EQ(listener->finished(), 1);
    EXPECT_EQ(listener->heard[0].finishes[0].reason, FinishReason::kCancelled);
    EXPECT_FALSE(listener->heard[0].tokens.empty());
  }
  EXPECT_EQ(engine.stats().failed, 0);
}

// The counts of a sequence's ids take nine bytes an id of the vocabulary; who waits has none yet.
TEST(Capacity, WhoWaitsTakesNoTable) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer keeps what is freed";
#endif
  ModelConfig config = small_config();
  config.vocab_size = 200'000;
  const EngineOptions options{.threads = 1, .slots = 1, .quiet = true};
  const auto weights = weights_of(config);
  Engine engine({config, std::nullopt, -1}, make_cpu_executors(weights, options), options);
  const auto listener = std::make_shared<Listener>();
  engine.submit(endless(), listener);
  ASSERT_TRUE(soon([&] { return engine.stats().generated_tokens > 5; }));
  constexpr int64_t kWaiting = 200;
  const int64_t before = resident_bytes();
  for (int64_t i = 0; i < kWaiting; ++i) engine.submit(endless(), listener);
  const int64_t steps = engine.stats().steps;
  ASSERT_TRUE(soon([&] { return engine.stats().steps > steps + 3; }));
  EXPECT_EQ(engine.stats().waiting, kWaiting);
  EXPECT_LT((resident_bytes() - before) / kWaiting, 20'000);
  engine.stop();
}

// Keeps nothing.
class Counter : public Sink {
 public:
  void on_token(int, const TokenResult&, std::string_view) override {}
  void on_finish(int, const Finish&) override {
    const std::lock_guard lock(mutex_);
    done_ = true;
    changed_.notify_one();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
};

// LAPLACE_TEST_TOKENS=1000000 for a longer run.
TEST(Capacity, MemoryStaysFlat) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer keeps what is freed";
#endif
  const char* const wanted = std::getenv("LAPLACE_TEST_TOKENS");
  const int64_t tokens = wanted == nullptr ? 40'000 : std::atoll(wanted);
  constexpr int64_t kRequests = 40;
  const auto engine =
      small_engine(small_weights(cpu::WeightType::kFloat32), {.threads = 1, .slots = 2});
  Request request = endless();
  request.prompt = {kSmallEndOfText, 10, 20, 30};
  request.max_tokens = tokens / kRequests;
  request.sampling.repetition_penalty = 1.1;
  request.top_log_probs = 2;
  int64_t early = 0, largest = 0;
  for (int64_t i = 0; i < kRequests; ++i) {
    const auto counter = std::make_shared<Counter>();
    engine->submit(request, counter);
    counter->wait();
    if (i == 5) early = resident_bytes();
    if (i > 5) largest = std::max(largest, resident_bytes());
  }
  const int64_t all = tokens / kRequests * kRequests;
  EXPECT_TRUE(soon([&] { return engine->stats().generated_tokens == all; }));
  EXPECT_LE(largest - early, 1'000'000);
}

}  // namespace
}  // namespace laplace
