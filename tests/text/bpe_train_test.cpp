// Training: against a naive trainer, the same for any threads and order, and its limits.
#include "text/bpe_train.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/log.h"
#include "base/random.h"
#include "text/byte_alphabet.h"
#include "text/splitter.h"
#include "text/tables.h"
#include "text/text_samples.h"

namespace laplace {
namespace {

// Small texts run out of pairs on purpose; their warnings would bury the test's output.
class BpeTrain : public testing::Test {
 protected:
  BpeTrain() { set_log_level(LogLevel::kError); }
  ~BpeTrain() override { set_log_level(LogLevel::kInfo); }
};

using Merges = std::vector<std::pair<TokenId, TokenId>>;
using testing_text::mixed_text;

Merges merges_of(const Tokenizer& tokenizer) {
  Merges merges;
  for (const auto& merge : tokenizer.tables().merges) merges.emplace_back(merge.left, merge.right);
  return merges;
}

BpeOptions options_of(TokenId vocab_size, int64_t min_frequency = 2) {
  BpeOptions options;
  options.vocab_size = vocab_size;
  options.min_frequency = min_frequency;
  return options;
}

// The definition in bpe_train.h, word for word: counts all pairs anew for every merge.
Merges train_naively(const std::vector<std::string>& texts, size_t limit, int64_t min_frequency) {
  std::vector<std::vector<TokenId>> pieces;
  for (const std::string& text : texts) {
    Splitter splitter(text);
    for (std::string_view piece; splitter.next(piece);) {
      auto& ids = pieces.emplace_back();
      for (const char byte : piece) ids.push_back(alphabet_index(uint8_t(byte)));
    }
  }
  Merges merges;
  while (merges.size() < limit) {
    std::map<std::pair<TokenId, TokenId>, int64_t> counts;
    for (const auto& ids : pieces) {
      for (size_t i = 0; i + 1 < ids.size(); ++i) ++counts[{ids[i], ids[i + 1]}];
    }
    const auto best =
        std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) {
          return a.second < b.second;  // of equal counts the first, which has the smallest ids
        });
    if (best == counts.end() || best->second < min_frequency) break;
    const auto made = TokenId(256 + merges.size());
    merges.push_back(best->first);
    for (auto& ids : pieces) {
      for (size_t i = 0; i + 1 < ids.size(); ++i) {
        if (std::pair(ids[i], ids[i + 1]) != best->first) continue;
        ids[i] = made;
        ids.erase(ids.begin() + std::ptrdiff_t(i) + 1);
      }
    }
  }
  return merges;
}

TEST_F(BpeTrain, FollowsTheDefinition) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const std::vector<std::string> texts = {mixed_text(seed, 4000), mixed_text(seed + 100, 500)};
    BpeTrainer trainer(2);
    for (const std::string& text : texts) trainer.add(text);
    const Tokenizer tokenizer = trainer.train(options_of(257 + 200));
    ASSERT_EQ(merges_of(tokenizer), train_naively(texts, 200, 2)) << "seed " << seed;
  }
}

TEST_F(BpeTrain, FollowsTheDefinitionWhereTokensOverlap) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    std::string text;  // runs of few letters: pairs that overlap, ties, repeats
    const uint64_t length = 20 + random_bits(seed, 1, 0) % 120;
    for (uint64_t i = 0; i < length; ++i) text += "aaab "[random_bits(seed, 2, i) % 5];
    BpeTrainer trainer(1);
    trainer.add(text);
    const Tokenizer tokenizer = trainer.train(options_of(400, 1));
    ASSERT_EQ(merges_of(tokenizer), train_naively({text}, 143, 1)) << text;
  }
}

TEST_F(BpeTrain, DoesNotDependOnThreads) {
  const std::string text = mixed_text(5, 6 << 20);  // several chunks
  std::vector<Tokenizer> trained;
  for (const int threads : {1, 2, 5}) {
    BpeTrainer trainer(threads);
    trainer.add(text);
    trained.push_back(trainer.train(options_of(900)));
  }
  EXPECT_EQ(merges_of(trained[0]), merges_of(trained[1]));
  EXPECT_EQ(merges_of(trained[0]), merges_of(trained[2]));
  EXPECT_EQ(trained[0].fingerprint(), trained[1].fingerprint());
}

TEST_F(BpeTrain, DoesNotDependOnTheOrderOfTexts) {
  BpeTrainer forwards(1);
  BpeTrainer backwards(1);
  for (uint64_t i = 0; i < 50; ++i) {
    forwards.add(mixed_text(i, 1000));
    backwards.add(mixed_text(49 - i, 1000));
  }
  EXPECT_EQ(merges_of(forwards.train(options_of(500))),
            merges_of(backwards.train(options_of(500))));
}

TEST_F(BpeTrain, PutsSpecialTokensLast) {
  BpeTrainer trainer(1);
  trainer.add(mixed_text(1, 10000));
  BpeOptions options = options_of(300);
  options.specials = {"<|endoftext|>", "<|user|>"};
  const Tokenizer tokenizer = trainer.train(options);
  EXPECT_EQ(tokenizer.vocab_size(), 300);
  EXPECT_EQ(tokenizer.end_of_text(), 298);
  EXPECT_EQ(tokenizer.special("<|user|>"), 299);
}

TEST_F(BpeTrain, StopsWhenNothingIsFrequentEnough) {
  BpeTrainer trainer(1);
  trainer.add("abab xyz");
  EXPECT_EQ(trainer.train(options_of(1000)).vocab_size(), 258);  // "ab"; "abab" is there once
  EXPECT_EQ(trainer.train(options_of(1000, 3)).vocab_size(), 257);
  EXPECT_EQ(trainer.train(options_of(1000, 1)).vocab_size(), 257 + 5);  // all pieces whole
}

TEST_F(BpeTrain, TakesAMillionEqualCharacters) {
  BpeTrainer trainer(2);
  trainer.add(std::string(1000000, 'a') + " " + std::string(1000000, ' '));
  const Tokenizer tokenizer = trainer.train(options_of(400));
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    EXPECT_LE(tokenizer.bytes_of(id).size(), kMaxPieceBytes);
  }
  const std::string text(100000, 'a');
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
}

TEST_F(BpeTrain, RefusesWhatCannotBe) {
  BpeTrainer trainer(1);
  EXPECT_THROW(trainer.train(options_of(300)), Error);  // no text
  trainer.add("some text");
  EXPECT_THROW(trainer.train(options_of(256)), Error);
  EXPECT_THROW(trainer.train(options_of(300, 0)), Error);
  EXPECT_EQ(trainer.train(options_of(257)).vocab_size(), 257);
}

}  // namespace
}  // namespace laplace
