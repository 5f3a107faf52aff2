// Cuts are certain: whatever the text, the ids of the parts are the ids of the whole.
#include "data/text_cut.h"

#include "base/random.h"
#include "import_support.h"

namespace laplace {
namespace {

TEST(TextCut, PrefersLinesThenWordsThenClasses) {
  EXPECT_EQ(certain_cut("one two\nthree four"), 7U);
  EXPECT_EQ(certain_cut("one two three"), 7U);
  EXPECT_EQ(certain_cut("one two\n\n"), 7U);  // not inside the white space
  EXPECT_EQ(certain_cut("abc123"), 3U);
  EXPECT_EQ(certain_cut("abc's"), 3U);          // not between ' and s
  EXPECT_EQ(certain_cut("one\xC2\xA0\n"), 0U);  // the newline follows other white space
  EXPECT_EQ(certain_cut("\xE3\x80\x80 a"), 0U);
  EXPECT_EQ(certain_cut("abcdef"), 0U);
  EXPECT_EQ(certain_cut(" a"), 0U);
  EXPECT_EQ(certain_cut(""), 0U);
}

TEST(TextCut, NeverChangesTheIds) {
  const Tokenizer tokenizer = small_tokenizer();
  const std::vector<std::string> parts = {
      "a",        "b",    "s",        "'",        "1",
      "2",        "-",    " ",        "  ",       "\n",
      "\n\n",     "\t",   "ab",       "\xC2\xA0", "\xE3\x80\x80",
      "\xC3\xA9", "\xFF", "\xE2\x80", "\r\n",     "\xC2\xB2",
      "\xCC\x81", "!",    "'re"};
  int cuts = 0;
  for (uint64_t round = 0; round < 20000; ++round) {
    std::string text;
    for (uint64_t i = 0; i < 2 + round % 15; ++i) {
      text += parts[random_bits(1, round, i) % parts.size()];
    }
    const size_t place = certain_cut(text);
    if (place == 0) continue;
    ++cuts;
    auto ids = tokenizer.encode(text.substr(0, place));
    const auto tail = tokenizer.encode(text.substr(place));
    ids.insert(ids.end(), tail.begin(), tail.end());
    ASSERT_EQ(ids, tokenizer.encode(text)) << quoted(text) << " at " << place;
  }
  EXPECT_GT(cuts, 10000);
}

}  // namespace
}  // namespace laplace
