// Stop strings: whatever the borders between the pieces, the same text leaves, and never a stop
// string or a beginning of one that was completed later.
#include "serve/engine/text_stream.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace laplace {
namespace {

// Every way to cut `text` into pieces.
void expect_for_all_splits(const std::string& text, const std::vector<std::string>& stops,
                           const std::string& want, bool stopped) {
  for (uint32_t cuts = 0; cuts < (1U << (text.size() - 1)); ++cuts) {
    StopFilter filter(stops);
    std::string out, piece;
    for (size_t i = 0; i < text.size(); ++i) {
      piece += text[i];
      if (i + 1 < text.size() && (cuts >> i & 1) == 0) continue;
      out += filter.push(piece);
      piece.clear();
      ASSERT_TRUE(want.starts_with(out)) << out << " must not have left, cuts " << cuts;
    }
    ASSERT_EQ(filter.stopped(), stopped) << text << " " << cuts;
    out += filter.finish();
    ASSERT_EQ(out, want) << text << " " << cuts;
  }
}

TEST(StopFilter, AllSplits) {
  expect_for_all_splits("one two three", {"two"}, "one ", true);
  expect_for_all_splits("one two three", {"four"}, "one two three", false);
  expect_for_all_splits("aaab", {"aab"}, "a", true);
  expect_for_all_splits("ababac", {"abac"}, "ab", true);
  expect_for_all_splits("User: hi", {"\n", "User:"}, "", true);
  // The first character that completes some stop string decides, then the longest one ending there.
  expect_for_all_splits("xabcd", {"abcd", "bc"}, "xa", true);
  expect_for_all_splits("xabc", {"bc", "abc"}, "x", true);
  // A beginning at the end of the text leaves at the end.
  expect_for_all_splits("the en", {"end"}, "the en", false);
  expect_for_all_splits("\xC3\xA9t\xC3\xA9\xE2\x82\xAC",
                        {"\xC3\xA9\xE2"
                         "\x82\xAC"},
                        "\xC3\xA9t", true);
}

TEST(StopFilter, HoldsBackNoMoreThanItMust) {
  StopFilter filter({"###"});
  EXPECT_EQ(filter.push("abc#"), "abc");
  EXPECT_EQ(filter.push("d##"), "#d");
  EXPECT_EQ(filter.push("#e"), "");
  EXPECT_TRUE(filter.stopped());
  EXPECT_EQ(filter.push("more"), "");
}

TEST(StopFilter, RefusesWhatCanNeverMatch) {
  EXPECT_THROW(StopFilter({""}), Error);
  EXPECT_THROW(StopFilter({"\xA9"}), Error);
}

TEST(TextStream, JoinsCharactersAcrossTokens) {
  const std::vector<std::string> specials = {"<|endoftext|>"};
  const Tokenizer tokenizer = Tokenizer::from_merges({}, specials);
  TextStream stream(tokenizer, {"\xE2\x82\xAC"});
  std::string out;
  for (const TokenId id : tokenizer.encode("\xC3\xA9 5\xE2\x82\xAC")) out += stream.push(id);
  EXPECT_EQ(out, "\xC3\xA9 5");
  EXPECT_TRUE(stream.stopped());
  EXPECT_EQ(stream.finish(), "");

  TextStream half(tokenizer, {});
  half.push(tokenizer.encode("\xE2\x82\xAC")[0]);
  EXPECT_EQ(half.finish(), "\xEF\xBF\xBD");
}

}  // namespace
}  // namespace laplace
