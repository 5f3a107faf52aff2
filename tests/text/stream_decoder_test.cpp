// StreamDecoder: whole UTF-8 only, whatever the ids and however the bytes are cut.
#include <gmock/gmock.h>

#include "base/random.h"
#include "text/text_samples.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace laplace {
namespace {

// Feeds the bytes one token at a time, in tokens of the given lengths, through a tokenizer whose
// tokens are the bytes.
std::string stream_bytes(const Tokenizer& tokenizer, std::string_view bytes) {
  StreamDecoder decoder(tokenizer);
  std::string text;
  for (const TokenId id : tokenizer.encode(bytes)) {
    const std::string part = decoder.push(id);
    EXPECT_TRUE(is_valid_utf8(part));
    text += part;
  }
  return text + decoder.finish();
}

const Tokenizer& byte_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::from_merges({}, {});
  return tokenizer;
}

TEST(StreamDecoder, GivesValidTextBackUnchanged) {
  const Tokenizer trained = testing_text::small_tokenizer();
  const std::string text = "Grüße, 世界! 👩‍🚀 e\u0301 \U0010FFFF done";
  EXPECT_EQ(stream_bytes(byte_tokenizer(), text), text);
  EXPECT_EQ(stream_bytes(trained, text), text);
}

TEST(StreamDecoder, HoldsBackAtEverySplit) {
  const std::string text = "a\u00E9\u4E2D\U0001F600z";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    StreamDecoder decoder(byte_tokenizer());
    std::string first;
    for (const TokenId id : byte_tokenizer().encode(text.substr(0, cut))) first += decoder.push(id);
    EXPECT_TRUE(is_valid_utf8(first));
    EXPECT_TRUE(text.starts_with(first));
    EXPECT_LE(cut - first.size(), 3U);
    std::string second;
    for (const TokenId id : byte_tokenizer().encode(text.substr(cut))) second += decoder.push(id);
    EXPECT_EQ(first + second + decoder.finish(), text);
  }
}

TEST(StreamDecoder, ReplacesMaximalSubparts) {
  const std::string r = "\uFFFD";
  // The Unicode Standard 16.0, tables 3-8 to 3-11.
  const std::vector<std::pair<std::string, std::string>> known = {
      {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", r + r + r + r + r + r + r + r + "A"},
      {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", r + r + r + r + r + r + r + r + "A"},
      {"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", r + r + r + r + r + "A" + r + r + "B"},
      {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", r + r + r + r + "A"},
      {"\xF0\x9F\x98", r},  // cut off at the end: one
      {"a\xE4\xB8", "a" + r},
  };
  for (const auto& [bytes, text] : known) EXPECT_EQ(stream_bytes(byte_tokenizer(), bytes), text);
}

TEST(StreamDecoder, IsTheSameForEveryWayToCutTheBytes) {
  const Tokenizer trained = testing_text::small_tokenizer();
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const std::string bytes = testing_text::mixed_text(seed, 200);
    ASSERT_EQ(stream_bytes(trained, bytes), stream_bytes(byte_tokenizer(), bytes));
  }
}

TEST(StreamDecoder, NeverThrows) {
  const Tokenizer trained = testing_text::small_tokenizer();
  StreamDecoder decoder(trained);
  for (uint64_t i = 0; i < 100000; ++i) {
    const auto id = TokenId(random_bits(1, 1, i) % 700) - 50;  // some outside the vocabulary
    ASSERT_TRUE(is_valid_utf8(decoder.push(id)));
  }
  EXPECT_EQ(decoder.push(INT32_MAX), "");
  EXPECT_EQ(decoder.push(INT32_MIN), "");
}

TEST(StreamDecoder, GivesNoTextForSpecialTokens) {
  const std::vector<std::string> specials = {"<|endoftext|>"};
  const Tokenizer tokenizer = Tokenizer::from_merges({}, specials);
  StreamDecoder decoder(tokenizer);
  EXPECT_EQ(decoder.push(tokenizer.end_of_text()), "");
  EXPECT_EQ(decoder.push(tokenizer.encode("x")[0]), "x");
  EXPECT_EQ(decoder.finish(), "");
}

TEST(StreamDecoder, IsAsNewAfterFinish) {
  StreamDecoder decoder(byte_tokenizer());
  EXPECT_EQ(decoder.push(byte_tokenizer().encode("\xE4")[0]), "");
  EXPECT_EQ(decoder.finish(), "\uFFFD");
  EXPECT_EQ(decoder.finish(), "");
  EXPECT_EQ(decoder.push(byte_tokenizer().encode("x")[0]), "x");
}

}  // namespace
}  // namespace laplace
