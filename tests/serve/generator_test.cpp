// Generation of one sequence on the golden tiny model: the golden greedy tokens, prompts cut at
// every place, what ends a generation, and memory that does not grow.
#include "serve/engine/generator.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "base/process.h"
#include "serve_support.h"

namespace laplace {
namespace {

using testing::byte_tokenizer;
using testing::ids_of;
using testing::kTinyEndOfText;
using testing::kTinyVocab;
using testing::open_tiny;

SamplingParams greedy() {
  SamplingParams params;
  params.temperature = 0;
  return params;
}

std::vector<TokenId> go_on(Generator& generator, const SamplingParams& params, size_t count) {
  std::vector<TokenId> ids;
  while (ids.size() < count) {
    ids.push_back(generator.pick(params));
    generator.feed(ids.back());
  }
  return ids;
}

std::string text_of(Generator& generator, const GenerationOptions& options,
                    GenerationResult* result = nullptr) {
  std::string out;
  GenerationSink sink;
  sink.text = [&](std::string_view text) { out += text; };
  const auto got = generate(generator, byte_tokenizer(), kTinyEndOfText, options, sink);
  if (result != nullptr) *result = got;
  return out;
}

TEST(Generator, GoldenGreedyTokens) {
  const testing::GoldenFile file("model_decode.safetensors");
  const std::vector<TokenId> prompt = ids_of(file.tensor("", "prompt"));
  const std::vector<TokenId> want = ids_of(file.tensor("", "generated"));
  const Decoder decoder = open_tiny();
  Generator generator(decoder, kTinyVocab);
  // However the prompt is cut, and token by token too.
  for (size_t cut = 0; cut <= prompt.size(); ++cut) {
    generator.reset();
    generator.prefill(std::span(prompt).first(cut));
    if (cut % 2 == 0) {
      generator.prefill(std::span(prompt).subspan(cut));
    } else {
      for (const TokenId id : std::span(prompt).subspan(cut)) generator.feed(id);
    }
    EXPECT_EQ(go_on(generator, greedy(), want.size()), want) << cut;
    EXPECT_EQ(generator.position(), int64_t(prompt.size() + want.size()));
  }
}

// 1,300 tokens are three pieces of kPrefillTokens.
TEST(Generator, PiecesOfALongPromptAreOnePrompt) {
  const Decoder decoder = open_tiny();
  std::vector<TokenId> ids;
  for (int i = 0; i < 1300; ++i) ids.push_back((i * 31 + i / 7) % kTinyVocab);
  Generator whole(decoder, kTinyVocab), single(decoder, kTinyVocab);
  int asked = 0;
  EXPECT_TRUE(whole.prefill(ids, [&] { return ++asked > 3; }));
  EXPECT_EQ(asked, 3);
  for (const TokenId id : ids) single.feed(id);
  for (size_t i = 0; i < kTinyVocab; ++i) {
    EXPECT_NEAR(whole.logits()[i], single.logits()[i], 1e-4);
  }
  Generator interrupted(decoder, kTinyVocab);
  asked = 0;
  EXPECT_FALSE(interrupted.prefill(ids, [&] { return ++asked > 1; }));
  EXPECT_EQ(interrupted.position(), kPrefillTokens);
}

TEST(Generator, ForksAndRestoresBitForBit) {
  const Decoder decoder = open_tiny();
  Generator generator(decoder, kTinyVocab);
  SamplingParams params;
  params.seed = 7;
  params.repetition_penalty = 1.2;
  params.frequency_penalty = 0.1;
  generator.prefill(std::vector<TokenId>{kTinyEndOfText, 1, 2, 3});
  go_on(generator, params, 20);
  const SequenceState fork = generator.snapshot();
  const std::vector<TokenId> want = go_on(generator, params, 50);
  const std::vector<float> logits(generator.logits().begin(), generator.logits().end());
  Generator other(decoder, kTinyVocab);
  for (int round = 0; round < 2; ++round) {  // what came after has not changed the copy
    other.restore(fork);
    EXPECT_EQ(go_on(other, params, 50), want);
    EXPECT_THAT(other.logits(), ::testing::ElementsAreArray(logits));
  }
}

TEST(Generator, RefusesIdsOutsideTheVocabulary) {
  const Decoder decoder = open_tiny();
  Generator generator(decoder, kTinyVocab);
  EXPECT_THROW(generator.prefill(std::vector<TokenId>{1, kTinyVocab}), Error);
  EXPECT_THROW(generator.prefill(std::vector<TokenId>{-1}), Error);
  EXPECT_EQ(generator.position(), 0);
  EXPECT_THROW(generator.feed(kTinyVocab), Error);
  EXPECT_THROW(generator.pick(greedy()), Error);
}

class Generation : public ::testing::Test {
 protected:
  void restart() {
    generator_.reset();
    generator_.prefill(std::vector<TokenId>{kTinyEndOfText, 10, 20});
  }
  std::string run(const GenerationOptions& options) {
    restart();
    return text_of(generator_, options, &result_);
  }

  Decoder decoder_ = open_tiny();
  Generator generator_{decoder_,
                       94};  // picks printable ASCII only, so any text may be a stop string
  GenerationResult result_;
};

TEST_F(Generation, StopsAtLengthAndAtEveryStopString) {
  GenerationOptions options;
  options.sampling.seed = 2;
  options.max_tokens = 40;
  options.ignore_end_of_text = true;
  const std::string free = run(options);
  EXPECT_EQ(result_.reason, GenerationEnd::kLength);
  EXPECT_EQ(result_.tokens, 40);
  ASSERT_GT(free.size(), 20U);
  for (size_t at = 0; at + 3 < 20; ++at) {
    options.stops = {free.substr(at, 3)};
    const std::string text = run(options);
    EXPECT_EQ(text, free.substr(0, free.find(options.stops[0])));
    EXPECT_EQ(result_.reason, GenerationEnd::kStopString);
    EXPECT_EQ(generator_.position(), 3 + result_.tokens);
  }
}

// A distribution in which end of text is the likeliest: found by asking for the greedy token.
TEST_F(Generation, EndOfText) {
  restart();
  const TokenId likeliest = generator_.pick(greedy());
  GenerationOptions options;
  options.sampling = greedy();
  options.max_tokens = 10;
  std::vector<TokenId> ids;
  GenerationSink sink;
  sink.token = [&](TokenId id) { ids.push_back(id); };
  const auto run_with_end = [&] {
    ids.clear();
    restart();
    return generate(generator_, byte_tokenizer(), likeliest, options, sink);
  };
  GenerationResult result = run_with_end();
  EXPECT_EQ(result.reason, GenerationEnd::kEndOfText);
  EXPECT_EQ(result.tokens, 0);
  EXPECT_EQ(generator_.position(), 3);  // end of text was not fed
  options.min_tokens = 3;
  result = run_with_end();
  ASSERT_GE(result.tokens, 3);
  for (size_t i = 0; i < 3; ++i) EXPECT_NE(ids[i], likeliest);
  options.ignore_end_of_text = true;
  result = run_with_end();
  EXPECT_EQ(result.tokens, 10);
  EXPECT_EQ(ids[0], likeliest);
  sink.interrupted = [&] { return ids.size() == 4; };
  result = run_with_end();
  EXPECT_EQ(result.reason, GenerationEnd::kInterrupted);
  EXPECT_EQ(result.tokens, 4);
}

TEST_F(Generation, SeedDecides) {
  GenerationOptions options;
  options.sampling.seed = 5;
  options.max_tokens = 30;
  const std::string once = run(options);
  EXPECT_EQ(run(options), once);
  options.sampling.seed = 6;
  EXPECT_NE(run(options), once);
}

TEST_F(Generation, MemoryStaysFlatOverTwentyThousandTokens) {
  GenerationOptions options;
  options.max_tokens = 20'000;
  options.ignore_end_of_text = true;
  options.sampling.repetition_penalty = 1.1;
  options.sampling.top_k = 20;
  options.sampling.top_p = 0.9;
  options.stops = {"no such text ever \xE2\x82\xAC"};
  int64_t tokens = 0, early = 0, largest = 0;
  GenerationSink sink;
  sink.token = [&](TokenId) {
    if (++tokens == 100) early = resident_bytes();
    if (tokens > 100 && tokens % 500 == 0) largest = std::max(largest, resident_bytes());
  };
  restart();
  generate(generator_, byte_tokenizer(), kTinyEndOfText, options, sink);
  EXPECT_EQ(tokens, 20'000);
  EXPECT_LE(largest - early, 1'000'000);
  RecordProperty("growth_bytes", std::to_string(largest - early));  // in --gtest_output=xml
}

TEST(GenerationOptions, RefusesNonsense) {
  GenerationOptions options;
  options.max_tokens = -1;
  EXPECT_THROW(options.validate(), Error);
  options.max_tokens = 5;
  options.min_tokens = 6;
  EXPECT_THROW(options.validate(), Error);
}

}  // namespace
}  // namespace laplace
