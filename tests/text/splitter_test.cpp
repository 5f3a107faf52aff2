// The splitter against the pattern taken literally, and its properties.
#include "text/splitter.h"

#include <gmock/gmock.h>

#include <array>
#include <string>
#include <vector>

#include "base/random.h"
#include "text/unicode.h"

namespace laplace {
namespace {

using testing::ElementsAre;

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> pieces;
  Splitter splitter(text);
  for (std::string_view piece; splitter.next(piece);) pieces.emplace_back(piece);
  return pieces;
}

// A character as the reference sees it: its bytes and its class, known without the tables.
struct Symbol {
  std::string bytes;
  char kind;  // L, N, S(pace), O(ther)
};

const std::vector<Symbol> kSymbols = {
    {"a", 'L'},          {"s", 'L'},          {"t", 'L'},
    {"r", 'L'},          {"e", 'L'},          {"v", 'L'},
    {"m", 'L'},          {"l", 'L'},          {"d", 'L'},
    {"S", 'L'},          {"\u00E9", 'L'},     {"\u4E2D", 'L'},
    {"\u02B0", 'L'},     {"\U00010380", 'L'}, {"1", 'N'},
    {"\u00B2", 'N'},     {"\u096B", 'N'},     {"\u2167", 'N'},
    {" ", 'S'},          {" ", 'S'},          {"\n", 'S'},
    {"\t", 'S'},         {"\r", 'S'},         {"\u00A0", 'S'},
    {"\u3000", 'S'},     {"\u0085", 'S'},     {"\u2028", 'S'},
    {"\u1680", 'S'},     {"'", 'O'},          {"'", 'O'},
    {"!", 'O'},          {"\u2019", 'O'},     {"\u0301", 'O'},
    {"\U0001F600", 'O'}, {"\u200B", 'O'},     {"\u180E", 'O'},
    {"\uFEFF", 'O'},     {"\x1C", 'O'},       {std::string(1, '\0'), 'O'},
    {"\xFF", 'O'},       {"\xC0", 'O'},       {"\xF8", 'O'},
};

// The pattern's alternatives in their order, each tried literally. Returns the match's length.
class Pattern {
 public:
  explicit Pattern(const std::vector<Symbol>& text) : text_(text) {}

  size_t match(size_t at) const {
    for (const std::string_view word : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
      if (literal(at, word)) return word.size();
    }
    for (const char kind : {'L', 'N', 'O'}) {
      if (const size_t length = spaced_run(at, kind); length > 0) return length;
    }
    const size_t white = run(at, 'S');
    for (size_t length = white; length > 0; --length) {  // \s+(?!\S)
      const bool followed = at + length < text_.size() && text_[at + length].kind != 'S';
      if (!followed) return length;
    }
    return white;  // \s+
  }

 private:
  bool literal(size_t at, std::string_view word) const {
    for (size_t i = 0; i < word.size(); ++i) {
      if (at + i >= text_.size() || text_[at + i].bytes != word.substr(i, 1)) return false;
    }
    return true;
  }
  size_t run(size_t at, char kind) const {
    size_t end = at;
    while (end < text_.size() && text_[end].kind == kind) ++end;
    return end - at;
  }
  size_t spaced_run(size_t at, char kind) const {
    if (at < text_.size() && text_[at].bytes == " ") {
      if (const size_t length = run(at + 1, kind); length > 0) return 1 + length;
    }
    return run(at, kind);
  }

  const std::vector<Symbol>& text_;
};

std::vector<std::string> split_by_pattern(const std::vector<Symbol>& text) {
  std::vector<std::string> pieces;
  const Pattern pattern(text);
  for (size_t at = 0; at < text.size();) {
    const size_t length = pattern.match(at);
    std::string piece;
    for (size_t i = at; i < at + length; ++i) piece += text[i].bytes;
    pieces.push_back(piece);
    at += length;
  }
  return pieces;
}

std::vector<Symbol> random_symbols(uint64_t stream, size_t length) {
  std::vector<Symbol> text;
  // A few different symbols a text, so that runs and repeats are common.
  const uint64_t different = 2 + random_bits(1, stream, 0) % 12;
  for (size_t i = 0; i < length; ++i) {
    const uint64_t pick = random_bits(1, stream, i + 1) % different;
    text.push_back(kSymbols[random_bits(2, stream, pick) % kSymbols.size()]);
  }
  return text;
}

std::string bytes_of(const std::vector<Symbol>& text) {
  std::string bytes;
  for (const Symbol& symbol : text) bytes += symbol.bytes;
  return bytes;
}

TEST(Splitter, AgreesWithThePatternOnRandomText) {
  for (uint64_t stream = 0; stream < 20000; ++stream) {
    const auto text = random_symbols(stream, 1 + stream % 40);
    ASSERT_EQ(split(bytes_of(text)), split_by_pattern(text)) << "stream " << stream;
  }
}

TEST(Splitter, AgreesWithThePatternOnAllShortTexts) {
  const std::vector<Symbol> few = {{"s", 'L'}, {"1", 'N'},      {" ", 'S'}, {"\n", 'S'},
                                   {"'", 'O'}, {"\u3000", 'S'}, {"!", 'O'}};
  for (int code = 0; code < 7 * 7 * 7 * 7 * 7 * 7; ++code) {
    std::vector<Symbol> text;
    for (int rest = code; rest > 0; rest /= 7) text.push_back(few[size_t(rest % 7)]);
    ASSERT_EQ(split(bytes_of(text)), split_by_pattern(text)) << "code " << code;
  }
}

TEST(Splitter, PiecesTogetherAreTheText) {
  for (uint64_t stream = 0; stream < 2000; ++stream) {
    std::string text;
    for (uint64_t i = 0; i < stream % 300; ++i) text += char(random_bits(3, stream, i));
    std::string together;
    for (const std::string& piece : split(text)) {
      ASSERT_FALSE(piece.empty());
      together += piece;
    }
    ASSERT_EQ(together, text);
  }
}

TEST(Splitter, CutsKnownSentences) {
  EXPECT_THAT(split("I'm  sure they'LL say 'tis 42nd!"),
              ElementsAre("I", "'m", " ", " sure", " they", "'", "LL", " say", " '", "tis", " 42",
                          "nd", "!"));
  EXPECT_THAT(split("a\n\n  b  "), ElementsAre("a", "\n\n ", " b", "  "));
  EXPECT_THAT(split(""), ElementsAre());
}

TEST(Splitter, MayBeCutWhereSafeCutSays) {
  for (uint64_t stream = 0; stream < 5000; ++stream) {
    const std::string text = bytes_of(random_symbols(stream, 60));
    const size_t from = random_bits(4, stream, 0) % (text.size() + 1);
    const size_t cut = safe_cut(text, from);
    ASSERT_GE(cut, from);
    ASSERT_LE(cut, text.size());
    auto pieces = split(std::string_view(text).substr(0, cut));
    const auto rest = split(std::string_view(text).substr(cut));
    pieces.insert(pieces.end(), rest.begin(), rest.end());
    ASSERT_EQ(pieces, split(text)) << "stream " << stream << " cut " << cut;
  }
}

TEST(Splitter, SafeCutFindsCutsInText) {
  EXPECT_EQ(safe_cut("one two three", 0), 3U);
  EXPECT_EQ(safe_cut("one two three", 4), 7U);
  EXPECT_EQ(safe_cut("one  two", 4), 8U);      // inside white space there is no cut
  EXPECT_EQ(safe_cut("\u3000 two x", 1), 7U);  // nor behind white space that is not ASCII
  EXPECT_EQ(safe_cut("", 0), 0U);
}

TEST(Unicode, KnowsClasses) {
  const std::vector<std::pair<uint32_t, CharClass>> known = {
      {'a', CharClass::kLetter},     {0x00AA, CharClass::kLetter}, {0x1C89, CharClass::kLetter},
      {0x323AF, CharClass::kLetter}, {0x323B0, CharClass::kOther}, {0x00BD, CharClass::kNumber},
      {0x3007, CharClass::kNumber},  {0x0300, CharClass::kOther},  {0x10FFFF, CharClass::kOther},
      {0x001C, CharClass::kOther},   {0x180E, CharClass::kOther},  {0xFEFF, CharClass::kOther},
      {0x0085, CharClass::kSpace},   {0x1680, CharClass::kSpace},  {0x200A, CharClass::kSpace},
      {0x200B, CharClass::kOther},   {0x202F, CharClass::kSpace},  {0x205F, CharClass::kSpace}};
  for (const auto& [code_point, kind] : known) {
    EXPECT_EQ(char_class(code_point), kind) << std::hex << code_point;
  }
  int spaces = 0;
  for (uint32_t c = 0; c < 0x110000; ++c) spaces += char_class(c) == CharClass::kSpace ? 1 : 0;
  EXPECT_EQ(spaces, 25);  // PropList.txt: White_Space
}

TEST(Unicode, ReadsBackEveryCharacter) {
  for (uint32_t c = 0; c < 0x110000; ++c) {
    std::string bytes;
    append_utf8(c, bytes);
    const Utf8Char got = read_utf8(bytes.data(), bytes.data() + bytes.size());
    const bool surrogate = c >= 0xD800 && c < 0xE000;
    ASSERT_EQ(got.kind == Utf8Char::Kind::kValid, !surrogate) << std::hex << c;
    if (surrogate) continue;
    ASSERT_EQ(got.code_point, c);
    ASSERT_EQ(got.length, bytes.size());
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      const Utf8Char part = read_utf8(bytes.data(), bytes.data() + cut);
      ASSERT_EQ(part.kind, Utf8Char::Kind::kIncomplete);
      ASSERT_EQ(part.length, cut);
    }
  }
}

}  // namespace
}  // namespace laplace
