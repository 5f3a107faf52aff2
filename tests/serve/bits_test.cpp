// The engine's contract: what a request gets is, bit for bit, what it gets alone, whatever is in
// the batch with it, whenever it came, however its prompt was cut, swapped out or not, forked or
// not, on any number of threads and replicas. Slots that are freed are filled with NaN.
#include <gmock/gmock.h>

#include <random>

#include "engine_support.h"
#include "serve/engine/scheduler.h"

namespace laplace {
namespace {

using testing::Heard;
using testing::Listener;
using testing::same;
using testing::small_engine;
using testing::small_model;
using testing::small_weights;

using Random = std::mt19937;

int64_t up_to(Random& random, int64_t most) { return int64_t(random() % uint64_t(most + 1)); }
bool chance(Random& random, int in) { return random() % unsigned(in) == 0; }

std::vector<TokenId> random_ids(Random& random, int64_t count) {
  std::vector<TokenId> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(TokenId(up_to(random, 271)));
  return ids;
}

SamplingParams random_sampling(Random& random) {
  SamplingParams params;
  params.temperature = chance(random, 3) ? 0 : 0.5 + double(up_to(random, 10)) / 10;
  if (chance(random, 3)) params.top_k = 1 + up_to(random, 40);
  if (chance(random, 3)) params.top_p = 0.5 + double(up_to(random, 4)) / 10;
  if (chance(random, 4)) params.min_p = 0.01;
  if (chance(random, 3)) params.repetition_penalty = 1.2;
  if (chance(random, 4)) params.frequency_penalty = 0.3;
  params.seed = random();
  return params;
}

Request random_request(Random& random) {
  Request request;
  const int64_t longest = chance(random, 6) ? 700 : 60;
  request.prompt = random_ids(random, 1 + up_to(random, longest));
  request.sampling = random_sampling(random);
  request.max_tokens = up_to(random, 20);
  request.ignore_end_of_text = chance(random, 2);
  if (chance(random, 3)) request.min_tokens = up_to(random, request.max_tokens);
  if (chance(random, 4)) request.stops = {"e", "qu", "\xC3\xA9"};
  if (chance(random, 4)) request.stop_token_ids = random_ids(random, 3);
  if (chance(random, 5)) request.logit_bias = {{3, 4.0F}, {100, -20.0F}};
  if (chance(random, 6)) {
    request.allowed_ids = random_ids(random, 30);
    request.allowed_ids.push_back(5);
    request.min_tokens = 0;
  }
  request.top_log_probs = int(up_to(random, 5)) - 1;
  request.prompt_log_probs = chance(random, 5);
  request.n = chance(random, 4) ? 3 : 1;
  request.priority = chance(random, 4) ? int(up_to(random, 2)) : 0;
  request.snapshot_at_end = chance(random, 3);
  for (int64_t place = 1 + up_to(random, 30); place <= int64_t(request.prompt.size());
       place += 1 + up_to(random, 60)) {
    if (chance(random, 2)) request.snapshot_at.push_back(place);
  }
  return request;
}

// One request alone: one slot, one thread, one prompt token a step; its n sequences one after
// another.
std::shared_ptr<Listener> alone(const std::shared_ptr<const CpuModel>& weights, Request request) {
  const int n = request.n;
  request.n = 1;
  auto out = std::make_shared<Listener>();
  for (int i = 0; i < n; ++i) {
    CpuExecutor executor(weights, 1, 1, true);
    const EngineModel model = small_model();
    Scheduler scheduler(model, executor, {.prefill_budget = 1});
    auto listener = std::make_shared<Listener>();
    auto job = std::make_shared<Job>();
    job->request = request;
    job->request.sampling.seed += uint64_t(i);
    job->sink = listener;
    scheduler.add(job);
    while (scheduler.busy()) scheduler.step();
    out->heard[i] = listener->heard[0];
    if (i == 0) out->prompt = listener->prompt, out->snapshots = listener->snapshots;
  }
  return out;
}

void expect_same(const Listener& got, const Listener& want, const std::string& where) {
  SCOPED_TRACE(where);
  EXPECT_TRUE(same(got.prompt, want.prompt));
  ASSERT_EQ(got.heard.size(), want.heard.size());
  for (const auto& [index, heard] : want.heard) {
    const Heard& other = got.heard.at(index);
    EXPECT_TRUE(same(other.tokens, heard.tokens)) << "index " << index;
    EXPECT_EQ(other.text, heard.text);
    ASSERT_EQ(other.finishes.size(), 1U);
    EXPECT_EQ(other.finishes[0].reason, heard.finishes[0].reason) << other.finishes[0].error;
    EXPECT_EQ(other.finishes[0].stop, heard.finishes[0].stop);
    EXPECT_EQ(other.finishes[0].stop_token, heard.finishes[0].stop_token);
    EXPECT_EQ(other.finishes[0].generated_tokens, heard.finishes[0].generated_tokens);
    ASSERT_EQ(other.last_snapshot == nullptr, heard.last_snapshot == nullptr);
    if (heard.last_snapshot) {
      EXPECT_TRUE(same(*other.last_snapshot, *heard.last_snapshot));
    }
  }
  ASSERT_EQ(got.snapshots.size(), want.snapshots.size());
  for (const auto& [place, snapshot] : want.snapshots) {
    EXPECT_TRUE(same(*got.snapshots.at(place), *snapshot)) << "snapshot at " << place;
  }
}

EngineOptions random_options(Random& random) {
  constexpr int64_t kBudgets[] = {1, 3, 16, 100, 512, 4096};
  EngineOptions options;
  options.slots = 1 + up_to(random, 4);
  options.prefill_budget = kBudgets[up_to(random, 5)];
  options.time_slice = chance(random, 2) ? 1 + up_to(random, 6) : 0;
  return options;
}

struct Case {
  Request request;
  std::shared_ptr<Listener> listener = std::make_shared<Listener>();
  bool cancelled = false;
};

class Bits : public ::testing::TestWithParam<cpu::WeightType> {
 protected:
  // Requests, of which some go on from a state of an earlier one.
  std::vector<Case> make_cases(Random& random) {
    std::vector<Case> cases(size_t(2 + up_to(random, 6)));
    for (Case& c : cases) {
      c.request = random_request(random);
      if (chance(random, 3)) {
        Request earlier = random_request(random);
        earlier.n = 1;
        earlier.snapshot_at = {int64_t(earlier.prompt.size())};
        c.request.from = alone(weights_, earlier)->snapshots.begin()->second;
        if (chance(random, 3)) c.request.prompt.clear(), c.request.snapshot_at.clear();
      }
    }
    return cases;
  }

  std::shared_ptr<const CpuModel> weights_ = small_weights(GetParam());
};

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr unsigned kWorkloads = 40;  // each takes ten times as long
#else
constexpr unsigned kWorkloads = 200;
#endif

// Requests come between steps, at random; some are cancelled. Deterministic by the seed.
TEST_P(Bits, OfTwoHundredWorkloads) {
  int64_t swaps = 0, cancels = 0;
  for (unsigned seed = 0; seed < kWorkloads; ++seed) {
    Random random(seed);
    std::vector<Case> cases = make_cases(random);
    const EngineOptions options = random_options(random);
    CpuExecutor executor(weights_, options.slots, 1 + int(seed % 2), true);
    const EngineModel model = small_model();
    Scheduler scheduler(model, executor, options);
    size_t next = 0;
    while (next < cases.size() || scheduler.busy()) {
      while (next < cases.size() && (chance(random, 3) || !scheduler.busy())) {
        auto job = std::make_shared<Job>();
        job->id = next + 1;
        job->request = cases[next].request;
        job->sink = cases[next].listener;
        scheduler.add(job);
        ++next;
      }
      if (chance(random, 40) && next > 0) {
        const auto victim = size_t(up_to(random, int64_t(next) - 1));
        cases[victim].cancelled = true;
        scheduler.cancel(victim + 1);
      }
      scheduler.step();
    }
    for (size_t i = 0; i < cases.size(); ++i) {
      for (int index = 0; index < cases[i].request.n; ++index) {
        ASSERT_EQ(cases[i].listener->heard[index].finishes.size(), 1U);
      }
      if (cases[i].cancelled) continue;  // the next test has those
      expect_same(*cases[i].listener, *alone(weights_, cases[i].request),
                  cat("workload ", seed, " request ", i));
    }
    scheduler.count_states();
    EXPECT_EQ(scheduler.stats().slots_used, 0);
    swaps += scheduler.stats().swaps_in;
    cancels += scheduler.stats().cancelled;
    if (HasFailure()) return;
  }
  // The workloads are what they are meant to be: of each, more than two swaps, a cancel in four.
  EXPECT_GT(swaps, int64_t{kWorkloads} * 5 / 2);
  EXPECT_GT(cancels, int64_t{kWorkloads} / 4);
}

// The same with the engine's own threads, where arrival is a matter of chance.
TEST_P(Bits, OfEnginesWithThreadsAndReplicas) {
  for (unsigned seed = 1000; seed < 1020; ++seed) {
    Random random(seed);
    std::vector<Case> cases = make_cases(random);
    EngineOptions options = random_options(random);
    options.replicas = 1 + int(seed % 2);
    options.threads = 1 + int(seed / 2 % 2);
    const auto engine = small_engine(weights_, options);
    for (Case& c : cases) engine->submit(c.request, c.listener);
    for (Case& c : cases) c.listener->wait(c.request.n);
    engine->stop();
    for (size_t i = 0; i < cases.size(); ++i) {
      expect_same(*cases[i].listener, *alone(weights_, cases[i].request),
                  cat("workload ", seed, " request ", i));
    }
    if (HasFailure()) return;
  }
}

std::string type_name(const ::testing::TestParamInfo<cpu::WeightType>& info) {
  constexpr const char* kNames[] = {"float32", "bfloat16", "int8", "int4"};
  return kNames[int(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Bits,
                         ::testing::Values(cpu::WeightType::kFloat32, cpu::WeightType::kBfloat16,
                                           cpu::WeightType::kInt8, cpu::WeightType::kInt4),
                         type_name);

// The test can fail: another state gives other bits.
TEST(BitsTest, SeesAnotherPrompt) {
  const auto weights = small_weights(cpu::WeightType::kFloat32);
  Random random(1);
  Request request;
  request.prompt = random_ids(random, 100);
  request.top_log_probs = 0;
  request.max_tokens = 5;
  request.ignore_end_of_text = true;
  const auto first = alone(weights, request);
  request.prompt[50] ^= 1;
  const auto second = alone(weights, request);
  EXPECT_FALSE(same(first->heard[0].tokens, second->heard[0].tokens));
}

}  // namespace
}  // namespace laplace
