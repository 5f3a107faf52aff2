// The engine as its users see it: what ends a request, who goes first, what is refused, failures
// that stay with the requests they hit, memory that does not grow.
#include "serve/engine/engine.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "engine_support.h"
#include "serve/engine/scheduler.h"

namespace laplace {
namespace {

using testing::kSmallEndOfText;
using testing::Listener;
using testing::same;
using testing::small_engine;
using testing::small_model;
using testing::small_weights;

Request simple(int64_t max_tokens) {
  Request request;
  request.prompt = {kSmallEndOfText, 10, 20, 30};
  request.sampling.seed = 3;
  request.max_tokens = max_tokens;
  request.ignore_end_of_text = true;
  return request;
}

std::vector<TokenId> ids_of(const Listener& listener, int index = 0) {
  std::vector<TokenId> ids;
  for (const TokenResult& token : listener.heard.at(index).tokens) ids.push_back(token.id);
  return ids;
}

class EngineTest : public ::testing::Test {
 protected:
  std::shared_ptr<Listener> run(const Request& request) {
    auto listener = std::make_shared<Listener>();
    engine_->submit(request, listener);
    listener->wait(request.n);
    return listener;
  }
  static const Finish& end_of(const std::shared_ptr<Listener>& listener, int index = 0) {
    return listener->heard.at(index).finishes.at(0);
  }

  std::shared_ptr<const CpuModel> weights_ = small_weights(cpu::WeightType::kFloat32);
  std::unique_ptr<Engine> engine_ = small_engine(weights_, {.threads = 1, .slots = 2});
};

TEST_F(EngineTest, StopsAtLengthStopStringsAndStopTokens) {
  const auto free = run(simple(40));
  EXPECT_EQ(end_of(free).reason, FinishReason::kLength);
  EXPECT_EQ(end_of(free).generated_tokens, 40);
  EXPECT_EQ(end_of(free).prompt_tokens, 4);
  const std::vector<TokenId> ids = ids_of(*free);
  ASSERT_EQ(ids.size(), 40U);

  Request request = simple(40);
  request.stop_token_ids = {ids[7]};
  const auto first = size_t(std::ranges::find(ids, ids[7]) - ids.begin());
  auto stopped = run(request);
  EXPECT_EQ(end_of(stopped).reason, FinishReason::kStop);
  EXPECT_EQ(end_of(stopped).stop_token, ids[7]);
  EXPECT_EQ(ids_of(*stopped).size(), first);

  const std::string text = free->heard.at(0).text;
  for (const size_t at : {size_t{0}, text.size() / 2}) {
    // A whole character at least, for a stop string must be UTF-8.
    size_t begin = at, end = at + 1;
    while (begin > 0 && (text[begin] & 0xC0) == 0x80) --begin;
    while (end < text.size() && (text[end] & 0xC0) == 0x80) ++end;
    request = simple(40);
    request.stops = {text.substr(begin, end - begin)};
    stopped = run(request);
    EXPECT_EQ(end_of(stopped).reason, FinishReason::kStop);
    EXPECT_EQ(end_of(stopped).stop, request.stops[0]);
    EXPECT_EQ(stopped->heard.at(0).text, text.substr(0, text.find(request.stops[0])));
  }
}

TEST_F(EngineTest, EndOfTextEndsUnlessItIsIgnoredOrTooEarly) {
  Request request = simple(5);
  request.ignore_end_of_text = false;
  request.logit_bias = {{kSmallEndOfText, 1000.0F}};
  auto listener = run(request);
  EXPECT_EQ(end_of(listener).reason, FinishReason::kStop);
  EXPECT_EQ(end_of(listener).stop_token, kSmallEndOfText);
  EXPECT_EQ(end_of(listener).generated_tokens, 0);
  request.min_tokens = 3;
  listener = run(request);
  EXPECT_EQ(end_of(listener).generated_tokens, 3);
  for (const TokenId id : ids_of(*listener)) EXPECT_NE(id, kSmallEndOfText);
  request.ignore_end_of_text = true;
  listener = run(request);
  EXPECT_EQ(ids_of(*listener), std::vector<TokenId>(5, kSmallEndOfText));
}

TEST_F(EngineTest, AStopStringEndsNothingBeforeMinTokens) {
  const auto free = run(simple(40));
  Request request = simple(40);
  for (unsigned char c = 0; c < 0x80; ++c) request.stops.emplace_back(1, char(c));
  const auto at_once = run(request);
  ASSERT_EQ(end_of(at_once).reason, FinishReason::kStop);
  ASSERT_LT(end_of(at_once).generated_tokens, 10);
  request.min_tokens = 10;
  const auto later = run(request);
  EXPECT_EQ(end_of(later).reason, FinishReason::kStop);
  EXPECT_GE(end_of(later).generated_tokens, 10);
  EXPECT_TRUE(free->heard.at(0).text.starts_with(later->heard.at(0).text));
  request.min_tokens = 40;
  EXPECT_EQ(end_of(run(request)).generated_tokens, 40);
}

TEST_F(EngineTest, OnlyAllowedIdsAndTheTokenizersAreEverPicked) {
  Request request = simple(30);
  request.sampling.temperature = 5;
  for (const TokenId id : ids_of(*run(request))) EXPECT_LT(id, 257);  // the head has 272 rows
  request.allowed_ids = {65, 66, 270};
  for (const TokenId id : ids_of(*run(request))) EXPECT_THAT(id, ::testing::AnyOf(65, 66));
}

TEST_F(EngineTest, LogProbsAreASoftmax) {
  Request request = simple(10);
  request.top_log_probs = 20;
  request.prompt_log_probs = true;
  const auto listener = run(request);
  ASSERT_EQ(listener->prompt.size(), 4U);
  EXPECT_TRUE(std::isnan(listener->prompt[0].log_prob));
  std::vector<TokenResult> all(listener->prompt.begin() + 1, listener->prompt.end());
  for (const TokenResult& token : listener->heard.at(0).tokens) all.push_back(token);
  for (const TokenResult& token : all) {
    ASSERT_EQ(token.top.size(), 20U);
    double sum = 0;
    for (size_t i = 0; i < 20; ++i) {
      if (i > 0) {
        EXPECT_GE(token.top[i - 1].log_prob, token.top[i].log_prob);
      }
      if (token.top[i].id == token.id) {
        EXPECT_EQ(token.top[i].log_prob, token.log_prob);
      }
      sum += std::exp(double(token.top[i].log_prob));
    }
    EXPECT_LE(token.log_prob, token.top[0].log_prob);
    EXPECT_LT(sum, 1.00001);
  }
  // All probabilities of one row sum to one: ask for each id's with a prompt of its own.
  double total = 0;
  for (TokenId id = 0; id < 272; ++id) {
    Request one = simple(0);
    one.prompt = {kSmallEndOfText, 10, id};
    one.prompt_log_probs = true;
    total += std::exp(double(run(one)->prompt[2].log_prob));
  }
  EXPECT_NEAR(total, 1, 1e-5);
}

TEST_F(EngineTest, ForksShareThePromptAndDifferInTheirSeeds) {
  Request request = simple(12);
  request.n = 3;
  const auto forked = run(request);
  EXPECT_EQ(forked->heard.size(), 3U);
  EXPECT_NE(ids_of(*forked, 0), ids_of(*forked, 1));
  EXPECT_EQ(engine_->stats().prompt_tokens, 4);
  request.n = 1;
  for (int i = 0; i < 3; ++i) {
    request.sampling.seed = 3 + uint64_t(i);
    EXPECT_EQ(ids_of(*run(request)), ids_of(*forked, i));
  }
}

// An exact hit needs no step: the snapshot's logits give the first token.
TEST_F(EngineTest, SnapshotsAtEveryCutGoOnWithTheSameBits) {
  Request request = simple(8);
  for (TokenId id = 40; id < 60; ++id) request.prompt.push_back(id);
  for (int64_t place = 1; place <= 24; ++place) request.snapshot_at.push_back(place);
  request.top_log_probs = 3;
  const auto whole = run(request);
  ASSERT_EQ(whole->snapshots.size(), 24U);
  for (const auto& [place, snapshot] : whole->snapshots) {
    EXPECT_EQ(snapshot->position, place);
    Request rest = simple(8);
    rest.from = snapshot;
    rest.top_log_probs = 3;
    rest.prompt.assign(request.prompt.begin() + place, request.prompt.end());
    const int64_t fed = engine_->stats().prompt_tokens;
    const auto resumed = run(rest);
    EXPECT_TRUE(same(resumed->heard.at(0).tokens, whole->heard.at(0).tokens)) << place;
    EXPECT_EQ(end_of(resumed).cached_tokens, place);
    EXPECT_EQ(engine_->stats().prompt_tokens - fed, 24 - place);
  }
}

TEST_F(EngineTest, CancelEndsWhatRunsAndWhatWaits) {
  std::vector<std::shared_ptr<Listener>> listeners;
  std::vector<RequestId> ids;
  for (int i = 0; i < 5; ++i) {
    listeners.push_back(std::make_shared<Listener>());
    ids.push_back(engine_->submit(simple(1 << 30), listeners.back()));
  }
  for (const RequestId id : ids) engine_->cancel(id);
  for (const auto& listener : listeners) {
    listener->wait(1);
    EXPECT_EQ(end_of(listener).reason, FinishReason::kCancelled);
  }
  engine_->cancel(ids[0]);
  engine_->cancel(123456);
  EXPECT_EQ(end_of(run(simple(3))).reason, FinishReason::kLength);
}

TEST_F(EngineTest, DeadlinesEndWhatRunsAndWhatWaits) {
  std::vector<std::shared_ptr<Listener>> listeners;
  for (int i = 0; i < 4; ++i) {
    Request request = simple(1 << 30);
    request.deadline = Clock::now() + std::chrono::milliseconds(20);
    listeners.push_back(std::make_shared<Listener>());
    engine_->submit(request, listeners.back());
  }
  for (const auto& listener : listeners) {
    listener->wait(1);
    EXPECT_EQ(end_of(listener).reason, FinishReason::kDeadline);
  }
}

TEST_F(EngineTest, AFullQueueRefuses) {
  engine_ = small_engine(weights_, {.threads = 1, .slots = 1, .max_waiting = 2});
  std::vector<std::shared_ptr<Listener>> listeners;
  const auto submit = [&] {
    listeners.push_back(std::make_shared<Listener>());
    engine_->submit(simple(1 << 30), listeners.back());
  };
  for (int i = 0; i < 3; ++i) submit();
  try {
    submit();
    FAIL();
  } catch (const Refused& refused) {
    EXPECT_EQ(refused.reason(), Refused::Reason::kQueueFull);
  }
  EXPECT_EQ(engine_->stats().refused, 1);
  engine_->stop();
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(listeners[i]->finished(), 1);
  EXPECT_EQ(listeners[3]->finished(), 0);
}

TEST_F(EngineTest, DrainFinishesWhatIsThereAndTakesNothingNew) {
  auto listener = std::make_shared<Listener>();
  engine_->submit(simple(200), listener);
  EXPECT_TRUE(engine_->drain(std::chrono::seconds(60)));
  EXPECT_EQ(end_of(listener).generated_tokens, 200);
  EXPECT_THROW(engine_->submit(simple(1), listener), Refused);
}

TEST_F(EngineTest, ASinkThatThrowsEndsItsOwnRequest) {
  class Thrower : public Listener {
   public:
    void on_token(int, const TokenResult&, std::string_view) override {
      throw std::runtime_error("nobody listens");
    }
  };
  const auto thrower = std::make_shared<Thrower>();
  engine_->submit(simple(1 << 30), thrower);
  EXPECT_EQ(end_of(run(simple(20))).generated_tokens, 20);
  thrower->wait(1);
  EXPECT_EQ(end_of(thrower).reason, FinishReason::kCancelled);
}

TEST_F(EngineTest, BadRequestsAreRefusedInASentence) {
  const auto message = [&](const std::function<void(Request&)>& change) {
    Request request = simple(5);
    change(request);
    try {
      engine_->submit(request, std::make_shared<Listener>());
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(message([](Request& r) { r.prompt = {}; }), HasSubstr("prompt"));
  EXPECT_THAT(message([](Request& r) { r.prompt = {272}; }), HasSubstr("272"));
  EXPECT_THAT(message([](Request& r) { r.prompt = {-1}; }), HasSubstr("-1"));
  EXPECT_THAT(message([](Request& r) { r.max_tokens = -1; }), HasSubstr("max_tokens"));
  EXPECT_THAT(message([](Request& r) { r.min_tokens = 6; }), HasSubstr("min_tokens"));
  EXPECT_THAT(message([](Request& r) { r.n = 0; }), HasSubstr("n is"));
  EXPECT_THAT(message([](Request& r) { r.top_log_probs = 21; }), HasSubstr("logprobs"));
  EXPECT_THAT(message([](Request& r) { r.stop_token_ids = {999}; }), HasSubstr("stop_token_ids"));
  EXPECT_THAT(message([](Request& r) { r.allowed_ids = {-5}; }), HasSubstr("allowed"));
  EXPECT_THAT(message([](Request& r) { r.allowed_ids = {271}; }), HasSubstr("allowed"));
  const auto ban_from = [](TokenId first) {
    return [first](Request& r) {
      for (TokenId id = first; id < 257; ++id) r.stop_token_ids.push_back(id);
      r.min_tokens = 1;
    };
  };
  EXPECT_THAT(message(ban_from(0)), HasSubstr("stop_token_ids"));
  EXPECT_EQ(message(ban_from(1)), "accepted");
  EXPECT_THAT(message([&](Request& r) { r.n = int(engine_->most_sequences()) + 1; }),
              HasSubstr("n is"));
  EXPECT_THAT(message([](Request& r) { r.logit_bias = {{5, NAN}}; }), HasSubstr("logit_bias"));
  EXPECT_THAT(message([](Request& r) { r.logit_bias = {{300, 1}}; }), HasSubstr("logit_bias"));
  EXPECT_THAT(message([](Request& r) { r.stops = {""}; }), HasSubstr("stop string"));
  EXPECT_THAT(message([](Request& r) { r.snapshot_at = {5}; }), HasSubstr("snapshot_at"));
  EXPECT_THAT(message([](Request& r) { r.from = std::make_shared<SequenceSnapshot>(); }),
              HasSubstr("state"));
  EXPECT_THAT(message([](Request& r) { r.sampling.top_p = 2; }), HasSubstr("top_p"));
}

// Steps fail when `broken` is set.
class Breaking : public CpuExecutor {
 public:
  using CpuExecutor::CpuExecutor;
  void step(std::span<const Segment> segments, std::span<const int64_t> rows,
            float* logits) override {
    if (broken.exchange(false)) throw std::runtime_error("the device is gone");
    CpuExecutor::step(segments, rows, logits);
  }
  std::atomic<bool> broken{false};
};

TEST_F(EngineTest, AStepThatFailsFailsItsRequestsOnly) {
  std::vector<std::unique_ptr<Executor>> executors;
  auto own = std::make_unique<Breaking>(weights_, 2, 1, true);
  Breaking& executor = *own;
  executors.push_back(std::move(own));
  engine_ = std::make_unique<Engine>(small_model(), std::move(executors), EngineOptions{});
  executor.broken = true;
  const auto failed = run(simple(5));
  EXPECT_EQ(end_of(failed).reason, FinishReason::kError);
  EXPECT_EQ(end_of(failed).error, "the device is gone");
  EXPECT_EQ(end_of(run(simple(5))).reason, FinishReason::kLength);
  EXPECT_EQ(engine_->stats().failed, 1);
}

// One slot, driven step by step: a larger priority takes it, and the other goes on afterwards.
TEST_F(EngineTest, PriorityTakesASlotAndGivesItBack) {
  const EngineModel model = small_model();
  CpuExecutor executor(weights_, 1, 1, true);
  Scheduler scheduler(model, executor, {});
  const auto add = [&](RequestId id, int priority) {
    auto job = std::make_shared<Job>();
    job->id = id;
    job->request = simple(10);
    job->request.priority = priority;
    auto listener = std::make_shared<Listener>();
    job->sink = listener;
    scheduler.add(job);
    return listener;
  };
  const auto low = add(1, 0);
  for (int i = 0; i < 3; ++i) scheduler.step();
  const auto equal = add(2, 0), high = add(3, 5);
  for (int i = 0; i < 10; ++i) scheduler.step();
  EXPECT_EQ(high->finished(), 1);
  EXPECT_EQ(low->finished() + equal->finished(), 0);
  EXPECT_EQ(scheduler.stats().swaps_out, 1);
  while (scheduler.busy()) scheduler.step();
  EXPECT_EQ(ids_of(*low), ids_of(*high));
  EXPECT_EQ(ids_of(*equal), ids_of(*high));
}

// A step feeds every decoding sequence and no more prompt tokens than the budget, shared.
TEST_F(EngineTest, LongPromptsDoNotStallOthers) {
  const EngineModel model = small_model();
  CpuExecutor executor(weights_, 3, 1, true);
  Scheduler scheduler(model, executor, {.prefill_budget = 10, .prefill_stretch = 0});
  const auto add = [&](int64_t prompt, int64_t output) {
    auto job = std::make_shared<Job>();
    job->request = simple(output);
    job->request.prompt.assign(size_t(prompt), 7);
    auto listener = std::make_shared<Listener>();
    job->sink = listener;
    scheduler.add(job);
    return listener;
  };
  const auto decoding = add(1, 50);
  scheduler.step();
  const auto one = add(100, 1), other = add(20, 1);
  for (int i = 0; i < 4; ++i) {
    scheduler.step();
    EXPECT_EQ(scheduler.stats().last_prefill_rows, 10);
    EXPECT_EQ(scheduler.stats().last_decode_rows, 1);
  }
  EXPECT_EQ(other->finished(), 1);  // half of the budget was its own
  EXPECT_EQ(one->finished(), 0);
  EXPECT_EQ(decoding->heard[0].tokens.size(), 5U);
}

TEST(EngineDtypes, Names) {
  for (const char* name : {"auto", "float32", "bfloat16", "int8", "int4"}) {
    EXPECT_EQ(engine_dtype_name(parse_engine_dtype(name)), name);
  }
  EXPECT_THROW(parse_engine_dtype("float16"), Error);
}

}  // namespace
}  // namespace laplace
