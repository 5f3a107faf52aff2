// See splitter.h.
#include "text/splitter.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "text/unicode.h"

namespace laplace {

namespace {

// The class of every ASCII character; bytes from 0x80 on need decoding.
constexpr uint8_t kDecode = 4;
constexpr std::array<uint8_t, 256> kByteClass = [] {
  std::array<uint8_t, 256> classes = {};
  for (size_t c = 0; c < 256; ++c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    CharClass ascii = letter ? CharClass::kLetter : CharClass::kOther;
    if (c >= '0' && c <= '9') ascii = CharClass::kNumber;
    if ((c >= 0x9 && c <= 0xD) || c == ' ') ascii = CharClass::kSpace;
    classes[c] = c < 0x80 ? uint8_t(ascii) : kDecode;
  }
  return classes;
}();

struct Char {
  CharClass kind;
  uint8_t length;
};

Char read_wide(const char* at, const char* end) {
  const Utf8Char c = read_utf8(at, end);
  if (c.kind != Utf8Char::Kind::kValid) return {CharClass::kOther, 1};
  return {char_class(c.code_point), c.length};
}

inline Char read_char(const char* at, const char* end) {
  const uint8_t ascii = kByteClass[uint8_t(*at)];
  if (ascii != kDecode) return {CharClass(ascii), 1};
  return read_wide(at, end);
}

// The end of the run of characters of class `kind` that starts at `at`.
inline const char* skip_run(const char* at, const char* end, CharClass kind) {
  while (at != end) {
    const Char c = read_char(at, end);
    if (c.kind != kind) break;
    at += c.length;
  }
  return at;
}

// The length of a contraction ('s 't 're 've 'm 'll 'd, lower case only) at an apostrophe, or 0.
size_t contraction(const char* at, const char* end) {
  if (end - at < 2) return 0;
  const char a = at[1];
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  if (end - at < 3) return 0;
  const char b = at[2];
  const bool two = ((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l');
  return two ? 3 : 0;
}

// The end of the piece that starts with white space at `at` (and is not " " before something else):
// all white space but its last character, which is left to what follows, if anything does.
const char* skip_white(const char* at, const char* end) {
  const char* last = at;
  const char* next = at;
  while (next != end) {
    const Char c = read_char(next, end);
    if (c.kind != CharClass::kSpace) return last == at ? next : last;
    last = next;
    next += c.length;
  }
  return end;
}

// The class of the character that ends at `at`, which is not the start of the text. UTF-8 can be
// read backwards: a lead byte is never inside another character.
CharClass class_before(std::string_view text, size_t at) {
  for (size_t length = std::min<size_t>(4, at); length > 0; --length) {
    const char* const start = text.data() + (at - length);
    const Char c = read_char(start, text.data() + at);
    if (c.length == length) return c.kind;
  }
  return CharClass::kOther;
}

}  // namespace

bool Splitter::next(std::string_view& piece) {
  if (at_ == end_) return false;
  const char* const start = at_;
  Char first = read_char(start, end_);
  const char* run = start;
  if (*start == '\'') {
    if (const size_t length = contraction(start, end_); length > 0) {
      at_ = start + length;
      piece = {start, length};
      return true;
    }
  } else if (*start == ' ' && start + 1 != end_) {
    const Char second = read_char(start + 1, end_);
    if (second.kind != CharClass::kSpace) {
      first = second;
      run = start + 1;
    }
  }
  at_ = first.kind == CharClass::kSpace ? skip_white(start, end_)
                                        : skip_run(run + first.length, end_, first.kind);
  piece = {start, size_t(at_ - start)};
  return true;
}

size_t safe_cut(std::string_view text, size_t from) {
  for (size_t at = std::max<size_t>(from, 1); at < text.size(); ++at) {
    if (kByteClass[uint8_t(text[at])] != uint8_t(CharClass::kSpace)) continue;
    if (class_before(text, at) != CharClass::kSpace) return at;
  }
  return text.size();
}

}  // namespace laplace
