// See text_cut.h.
//
// GPT-2's pattern is
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// and matches from left to right without looking behind. No alternative lets white space follow
// something else within a piece, and the only look-ahead belongs to white space. So between a
// character that is not white space and one that is, a piece ends for certain, and neither side's
// pieces depend on the other. A cut after white space would be wrong: the look-ahead makes "\n\n"
// one piece at the end of a text and two before a letter.
//
// Texts without white space (tables of numbers, base64) are cut where two ASCII characters of
// different classes meet: letter, digit, other. Only an apostrophe and a letter may share a piece.
#include "data/text_cut.h"

#include <algorithm>
#include <array>

namespace laplace {

namespace {

// The characters of \s beyond ASCII (Unicode White_Space), in UTF-8.
constexpr std::array<std::string_view, 19> kWideSpaces = {
    "\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80", "\xE2\x80\x80", "\xE2\x80\x81",
    "\xE2\x80\x82", "\xE2\x80\x83", "\xE2\x80\x84", "\xE2\x80\x85", "\xE2\x80\x86",
    "\xE2\x80\x87", "\xE2\x80\x88", "\xE2\x80\x89", "\xE2\x80\x8A", "\xE2\x80\xA8",
    "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80"};

bool is_ascii_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

bool ends_in_space(std::string_view text) {
  if (is_ascii_space(text.back())) return true;
  if (static_cast<unsigned char>(text.back()) < 0x80) return false;
  return std::ranges::any_of(kWideSpaces, [&](auto space) { return text.ends_with(space); });
}

enum class Kind { kLetter, kDigit, kOther, kSpace, kWide };

Kind kind_of(char c) {
  if (static_cast<unsigned char>(c) >= 0x80) return Kind::kWide;
  if (is_ascii_space(c)) return Kind::kSpace;
  if (c >= '0' && c <= '9') return Kind::kDigit;
  if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return Kind::kLetter;
  return Kind::kOther;
}

bool breaks_between(char left, char right) {
  const Kind a = kind_of(left);
  const Kind b = kind_of(right);
  if (a == b || a >= Kind::kSpace || b >= Kind::kSpace) return false;
  return !(left == '\'' && b == Kind::kLetter);
}

}  // namespace

size_t certain_cut(std::string_view text) {
  size_t space = 0;
  size_t change = 0;
  for (size_t cut = text.size(); cut-- > 1;) {
    if (is_ascii_space(text[cut])) {
      if (ends_in_space(text.substr(0, cut))) continue;
      if (text[cut] == '\n') return cut;
      if (space == 0) space = cut;
    } else if (space == 0 && change == 0 && breaks_between(text[cut - 1], text[cut])) {
      change = cut;
    }
  }
  return space != 0 ? space : change;
}

}  // namespace laplace
