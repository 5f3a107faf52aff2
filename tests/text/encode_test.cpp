// Encoding and decoding: GPT-2's ids, the definition of BPE, long runs, any bytes.
#include <gmock/gmock.h>

#include <thread>

#include "base/error.h"
#include "base/json.h"
#include "base/random.h"
#include "text/text_samples.h"
#include "text/tokenizer.h"

namespace laplace {
namespace {

using testing_text::encode_slowly;
using testing_text::gpt2;
using testing_text::mixed_text;
using testing_text::small_tokenizer;

std::string repeat(std::string_view unit, size_t times) {
  std::string text;
  text.reserve(unit.size() * times);
  for (size_t i = 0; i < times; ++i) text += unit;
  return text;
}

TEST(Encode, GivesTheIdsOfGpt2) {
  const auto tokenizer = gpt2();
  if (!tokenizer) return;
  EXPECT_EQ(tokenizer->vocab_size(), 50257);
  EXPECT_EQ(tokenizer->end_of_text(), 50256);
  const Json golden = load_json(Path(LAPLACE_SOURCE_DIR) / "tests/data/golden/gpt2_tokens.json");
  Encoder encoder(*tokenizer);
  ASSERT_GT(golden.at("cases").size(), 100U);
  for (const Json& one : golden.at("cases")) {
    const auto text = one.at("text").get<std::string>();
    const auto ids = one.at("ids").get<std::vector<TokenId>>();
    EXPECT_EQ(tokenizer->encode(text), ids) << one.at("name");
    EXPECT_EQ(tokenizer->decode(ids), text) << one.at("name");
    std::vector<TokenId> cached;
    encoder.encode(text, cached);
    EXPECT_EQ(cached, ids) << one.at("name");
  }
}

TEST(Encode, FollowsTheDefinition) {
  const Tokenizer tokenizer = small_tokenizer();
  Encoder encoder(tokenizer, 16);  // a small cache, so that pieces are thrown out of it
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const std::string text = mixed_text(seed, 3000);
    const auto slow = encode_slowly(tokenizer, text);
    ASSERT_EQ(tokenizer.encode(text), slow);
    std::vector<TokenId> ids;
    encoder.encode(text, ids);
    ASSERT_EQ(ids, slow);
    ASSERT_EQ(tokenizer.decode(ids), text);
  }
}

// Merges in an order that no training gives: later ranks make what earlier ones need.
Tokenizer shuffled_tokenizer(uint64_t seed) {
  const std::string json = small_tokenizer(360).to_json();
  Json tree = parse_json(json, "test");
  Json& merges = tree["model"]["merges"];
  for (size_t i = merges.size(); i > 1; --i) {
    std::swap(merges[i - 1], merges[random_bits(seed, 5, i) % i]);
  }
  return Tokenizer::parse_json(to_text(tree), "test");
}

TEST(Encode, FollowsTheDefinitionInLongPieces) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const Tokenizer tokenizer = seed % 2 == 0 ? small_tokenizer() : shuffled_tokenizer(seed);
    std::string text;  // letters only: one piece
    while (text.size() < 1500) {
      text +=
          std::array<std::string_view, 8>{"the", "a", "aa", "tokens", "ing", "state", "é", "中文"}
              [random_bits(seed, 6, text.size()) % 8];
    }
    for (const size_t length : {63, 64, 65, 66, 128, 129, 700, 1500}) {
      const auto piece = std::string_view(text).substr(0, length);
      ASSERT_EQ(tokenizer.encode(piece), encode_slowly(tokenizer, piece)) << seed << " " << length;
    }
  }
}

// Tokens that double: "a", "aa", "aaaa", ...; also of spaces, "1" and "é".
Tokenizer doubling_tokenizer() {
  const Tokenizer bytes = Tokenizer::from_merges({}, {});
  std::vector<std::pair<TokenId, TokenId>> merges;
  for (const std::string_view unit : {"a", " ", "1", "é"}) {
    const auto ids = bytes.encode(unit);
    auto last = ids[0];
    if (ids.size() == 2) {
      merges.emplace_back(ids[0], ids[1]);
      last = 255 + TokenId(merges.size());
    }
    for (int i = 0; i < 15; ++i) {
      merges.emplace_back(last, last);
      last = 255 + TokenId(merges.size());
    }
  }
  return Tokenizer::from_merges(merges, {});
}

// Tokens that grow by one: "a", "aa", "aaa", ...
Tokenizer growing_tokenizer() {
  const TokenId a = Tokenizer::from_merges({}, {}).encode("a")[0];
  std::vector<std::pair<TokenId, TokenId>> merges = {{a, a}};
  for (TokenId last = 256; last < 4000; ++last) merges.emplace_back(last, a);
  return Tokenizer::from_merges(merges, {});
}

TEST(Encode, TakesAMillionEqualCharacters) {
  std::vector<Tokenizer> tokenizers = {small_tokenizer(), doubling_tokenizer(),
                                       growing_tokenizer()};
  if (const auto gpt = gpt2()) tokenizers.push_back(*gpt);
  for (const Tokenizer& tokenizer : tokenizers) {
    for (const std::string_view unit : {"a", " ", "1", "é", "\n", "!", "\xFF", "中"}) {
      const std::string text = repeat(unit, 1000000);
      const auto ids = tokenizer.encode(text);
      ASSERT_EQ(tokenizer.decode(ids), text) << unit;
    }
  }
  EXPECT_EQ(tokenizers[1].encode(repeat("a", 32768)).size(), 1U);
}

TEST(Encode, TakesAnyBytes) {
  const Tokenizer tokenizer = small_tokenizer();
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    std::string text;
    for (uint64_t i = 0; i < seed % 200; ++i) text += char(random_bits(seed, 8, i));
    ASSERT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

TEST(Encode, TakesSpecialTokensAsOrdinaryText) {
  const Tokenizer tokenizer = small_tokenizer();
  const std::string text = "a<|endoftext|>b";
  const auto ids = tokenizer.encode(text);
  EXPECT_THAT(ids, testing::Not(testing::Contains(tokenizer.end_of_text())));
  EXPECT_EQ(tokenizer.decode(ids), text);
}

TEST(Encode, IsTheSameFromManyThreads) {
  const Tokenizer tokenizer = small_tokenizer();
  const std::string text = mixed_text(3, 100000);
  const auto ids = tokenizer.encode(text);
  std::vector<std::vector<TokenId>> others(4);
  {
    std::vector<std::jthread> threads;
    for (auto& other : others) threads.emplace_back([&] { other = tokenizer.encode(text); });
  }
  EXPECT_THAT(others, testing::Each(ids));
}

TEST(Tokenizer, NumbersBytesAsGpt2Does) {
  const std::vector<std::string> specials = {"<|endoftext|>", "<|pad|>"};
  const Tokenizer tokenizer = Tokenizer::from_merges({}, specials);
  EXPECT_EQ(tokenizer.vocab_size(), 258);
  EXPECT_EQ(tokenizer.bytes_of(0), "!");
  EXPECT_EQ(tokenizer.bytes_of(93), "~");
  EXPECT_EQ(tokenizer.bytes_of(94), "\xA1");
  EXPECT_EQ(tokenizer.bytes_of(188), std::string(1, '\0'));
  EXPECT_EQ(tokenizer.bytes_of(220), " ");
  EXPECT_EQ(tokenizer.bytes_of(255), "\xAD");
  EXPECT_EQ(tokenizer.end_of_text(), 256);
  EXPECT_EQ(tokenizer.special("<|pad|>"), 257);
  EXPECT_EQ(tokenizer.special("<|no|>"), -1);
  EXPECT_TRUE(tokenizer.is_special(257));
  EXPECT_FALSE(tokenizer.is_special(255));
  EXPECT_FALSE(tokenizer.is_special(258));
  const std::vector<TokenId> ids = {39, 256};
  EXPECT_EQ(tokenizer.decode(ids), "H<|endoftext|>");
}

TEST(Tokenizer, RefusesWhatCannotBe) {
  using Merges = std::vector<std::pair<TokenId, TokenId>>;
  const auto made = [](const Merges& merges, const std::vector<std::string>& specials) {
    return Tokenizer::from_merges(merges, specials);
  };
  EXPECT_THROW(made({{0, 256}}, {}), Error);
  EXPECT_THROW(made({{-1, 0}}, {}), Error);
  EXPECT_THROW(made({{0, 0}, {0, 0}}, {}), Error);
  EXPECT_THROW(made({{0, 0}, {256, 0}, {0, 256}}, {}), Error);  // "!!!" twice
  EXPECT_THROW(made({}, {"<a>", "<a>"}), Error);
  EXPECT_THROW(made({}, {""}), Error);
  EXPECT_THROW(made({}, {"a"}), Error);
  EXPECT_THROW(made({}, {"\xFF"}), Error);
  Merges doubling = {{0, 0}};
  for (TokenId last = 256; last < 320; ++last) doubling.emplace_back(last, last);
  EXPECT_THROW(made(doubling, {}), Error);
  const Tokenizer bytes = made({}, {});
  const std::vector<TokenId> outside = {256};
  EXPECT_THROW(bytes.decode(outside), Error);
  EXPECT_THROW(bytes.bytes_of(-1), Error);
}

TEST(Tokenizer, HasAFingerprintOfAllThatDecidesIds) {
  using Merges = std::vector<std::pair<TokenId, TokenId>>;
  const std::vector<std::string> none;
  const std::vector<std::string> one = {"<|endoftext|>"};
  const auto print = [](const Merges& merges, const std::vector<std::string>& specials) {
    return Tokenizer::from_merges(merges, specials).fingerprint();
  };
  const std::vector<uint64_t> prints = {print({}, none),
                                        print({}, one),
                                        print({{0, 1}}, none),
                                        print({{1, 0}}, none),
                                        print({{0, 1}, {1, 0}}, none),
                                        print({{1, 0}, {0, 1}}, none)};
  for (size_t i = 0; i < prints.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(prints[i], prints[j]) << i << " " << j;
  }
  EXPECT_EQ(print({{0, 1}}, one), print({{0, 1}}, one));
}

}  // namespace
}  // namespace laplace
