// The sampler against the golden distributions, and what its draws depend on.
#include "serve/engine/sampler.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/json.h"
#include "base/random.h"
#include "support/golden.h"

namespace laplace {
namespace {

SamplingParams params_of(const Json& json) {
  SamplingParams params;
  params.temperature = json["temperature"];
  params.top_k = json["top_k"];
  params.top_p = json["top_p"];
  params.min_p = json["min_p"];
  params.repetition_penalty = json["repetition_penalty"];
  params.presence_penalty = json["presence_penalty"];
  params.frequency_penalty = json["frequency_penalty"];
  return params;
}

TEST(Sampler, GoldenDistributions) {
  const Json cases = load_json(testing::golden_path("sampling.json"))["cases"];
  ASSERT_GT(cases.size(), 30U);
  Sampler sampler;
  for (const Json& item : cases) {
    const std::vector<float> logits = item["logits"];
    const std::vector<double> want = item["probs"];
    TokenCounts counts(int64_t(logits.size()));
    for (const int32_t id : item["prompt"]) counts.add_prompt(id);
    for (const int32_t id : item["output"]) counts.add_output(id);
    const SamplingParams params = params_of(item);
    params.validate();
    std::vector<double> probs(logits.size());
    const AllowedIds all{int64_t(logits.size())};
    sampler.distribution(logits, params, &counts, all, probs);
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(probs[i], want[i], 1e-5) << item["name"] << " " << i;
      EXPECT_TRUE(want[i] != 0 || probs[i] == 0) << item["name"] << " " << i;
    }
    for (uint64_t position = 0; position < 50; ++position) {
      const int32_t id = sampler.sample(logits, params, &counts, all, position);
      EXPECT_GT(want[size_t(id)], 0) << item["name"];
    }
  }
}

std::vector<float> some_logits(size_t count) {
  std::vector<float> logits;
  for (size_t i = 0; i < count; ++i) logits.push_back(float(6 * random_uniform(5, 0, i) - 3));
  return logits;
}

// Pearson's statistic over n draws: about V - 1 for a right sampler, growing with n for a wrong
// one.
TEST(Sampler, DrawsFollowTheDistribution) {
  const std::vector<float> logits = some_logits(40);
  const AllowedIds all{40};
  Sampler sampler;
  for (const double top_p : {1.0, 0.8}) {
    SamplingParams params;
    params.top_p = top_p;
    params.seed = 11;
    std::vector<double> probs(40);
    sampler.distribution(logits, params, nullptr, all, probs);
    constexpr int kDraws = 200'000;
    std::vector<int> drawn(40);
    for (int i = 0; i < kDraws; ++i) {
      ++drawn[size_t(sampler.sample(logits, params, nullptr, all, uint64_t(i)))];
    }
    double statistic = 0;
    for (size_t i = 0; i < 40; ++i) {
      const double want = probs[i] * kDraws;
      if (want == 0) {
        EXPECT_EQ(drawn[i], 0);
        continue;
      }
      statistic += (drawn[i] - want) * (drawn[i] - want) / want;
    }
    EXPECT_LT(statistic, 78);  // the 0.9998 quantile at 39 degrees of freedom
  }
}

TEST(Sampler, ADrawDependsOnSeedAndPositionOnly) {
  const std::vector<float> logits = some_logits(1000), others = some_logits(500);
  SamplingParams params;
  params.seed = 3;
  Sampler alone, busy;
  int differences = 0;
  for (uint64_t position = 0; position < 100; ++position) {
    const int32_t want = alone.sample(logits, params, nullptr, {1000}, position);
    busy.sample(others, params, nullptr, {500}, position);
    EXPECT_EQ(busy.sample(logits, params, nullptr, {1000}, position), want);
    SamplingParams reseeded = params;
    reseeded.seed = 4;
    differences += busy.sample(logits, reseeded, nullptr, {1000}, position) != want ? 1 : 0;
  }
  EXPECT_GT(differences, 80);
}

TEST(Sampler, NeverPicksBeyondTheLimitOrTheBanned) {
  std::vector<float> logits(64, 0.0F);
  logits[63] = 50;
  logits[5] = 40;
  Sampler sampler;
  for (const double temperature : {0.0, 1.0}) {
    for (const double presence : {0.0, 1.0}) {
      SamplingParams params;
      params.temperature = temperature;
      params.presence_penalty = presence;
      TokenCounts counts(64);
      counts.add_output(63);
      EXPECT_EQ(sampler.sample(logits, params, &counts, {64}, 0), 63);
      EXPECT_EQ(sampler.sample(logits, params, &counts, {63}, 0), 5);
      EXPECT_NE(sampler.sample(logits, params, &counts, {63, 5}, 0), 5);
    }
  }
}

TEST(Sampler, ExtremesStayFinite) {
  Sampler sampler;
  SamplingParams params;
  params.temperature = 1e-300;
  EXPECT_EQ(sampler.sample(std::vector<float>{1, 3, 2}, params, nullptr, {3}, 0), 1);
  constexpr float kInf = std::numeric_limits<float>::infinity();
  params.temperature = 1;
  EXPECT_EQ(sampler.sample(std::vector<float>{-kInf, -kInf, 2}, params, nullptr, {3}, 0), 2);
  for (const double temperature : {0.0, 1.0}) {
    params.temperature = temperature;
    EXPECT_THROW(sampler.sample(std::vector<float>{NAN, NAN}, params, nullptr, {2}, 0), Error);
    EXPECT_THROW(sampler.sample(std::vector<float>{0, kInf}, params, nullptr, {2}, 0), Error);
    // One NaN anywhere, in a whole vector and behind it.
    for (const size_t at : {0, 17, 63, 64}) {
      std::vector<float> logits(65, 1.0F);
      logits[at] = NAN;
      EXPECT_THROW(sampler.sample(logits, params, nullptr, {65}, 0), Error) << at;
      EXPECT_THROW(sampler.sample(logits, params, nullptr, {65, 3}, 0), Error) << at;
    }
  }
}

TEST(Sampler, RefusesParametersOutOfRange) {
  const auto refused = [](auto change, const std::string& field) {
    SamplingParams params;
    change(params);
    try {
      params.validate();
      ADD_FAILURE() << field;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(field));
      EXPECT_EQ(error.exit_code(), 2);
    }
  };
  refused([](SamplingParams& p) { p.temperature = -0.1; }, "temperature");
  refused([](SamplingParams& p) { p.temperature = NAN; }, "temperature");
  refused([](SamplingParams& p) { p.top_k = -1; }, "top_k");
  refused([](SamplingParams& p) { p.top_p = 0; }, "top_p");
  refused([](SamplingParams& p) { p.top_p = 1.5; }, "top_p");
  refused([](SamplingParams& p) { p.min_p = -1; }, "min_p");
  refused([](SamplingParams& p) { p.repetition_penalty = 0; }, "repetition_penalty");
  refused([](SamplingParams& p) { p.presence_penalty = NAN; }, "presence_penalty");
}

TEST(TokenCounts, CountsAndClears) {
  TokenCounts counts(8);
  counts.add_prompt(3);
  counts.add_output(3);
  counts.add_output(5, 2);
  counts.add_output(3);
  EXPECT_THAT(counts.seen(), ::testing::ElementsAre(3, 5));
  EXPECT_EQ(counts.in_output(3), 2U);
  EXPECT_FALSE(counts.in_prompt(5));
  counts.clear();
  EXPECT_TRUE(counts.seen().empty());
  EXPECT_EQ(counts.in_output(5), 0U);
}

}  // namespace
}  // namespace laplace
