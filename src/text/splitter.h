// Cuts text into the pieces inside which bytes are merged, by GPT-2's pattern
//
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
// with the character classes of unicode.h. Written by hand: one pass, no backtracking, no
// recursion, whatever the text. A byte that is not part of valid UTF-8 counts as one "other"
// character, so that the pieces put together are always the text.
//
// Source of the pattern: Radford et al., "Language Models are Unsupervised Multitask Learners"
// (2019), and its published encoder.
#pragma once

#include <cstddef>
#include <string_view>

namespace laplace {

class Splitter {
 public:
  // The text must outlive the splitter and the pieces it gives.
  explicit Splitter(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {}

  // Sets `piece` to the next piece, never empty; false at the end of the text.
  bool next(std::string_view& piece);

 private:
  const char* at_;
  const char* end_;
};

// The first position at or after `from` where the text may be cut without changing any piece: the
// pieces of text[0, cut) and of text[cut, size) are together those of the text. text.size() when
// there is none. Such cuts stand before ASCII white space that follows a character that is not
// white space: no piece goes on from one into the other, and no rule looks from one to the other.
size_t safe_cut(std::string_view text, size_t from);

}  // namespace laplace
