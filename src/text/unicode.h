// Unicode for the splitter: decoding UTF-8 that may be broken, and the class of a character.
//
// Classes are those of Unicode 16: letters are category L*, numbers N*, white space the property
// White_Space; everything else (marks, punctuation, symbols, controls, unassigned) is "other".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace laplace {

enum class CharClass : uint8_t { kOther, kLetter, kNumber, kSpace };

// Two stages: a block of 128 characters, then two bits a character, lowest bits first. Characters
// above the last block are all "other".
constexpr size_t kUnicodeBlocks = 1608;
constexpr size_t kUnicodeDistinctBlocks = 208;
extern const std::array<uint8_t, kUnicodeBlocks> kUnicodeBlockOf;
extern const std::array<std::array<uint8_t, 32>, kUnicodeDistinctBlocks> kUnicodeBlock;

inline CharClass char_class(uint32_t code_point) {
  const size_t block = code_point >> 7;
  if (block >= kUnicodeBlocks) return CharClass::kOther;
  const uint8_t four = kUnicodeBlock[kUnicodeBlockOf[block]][(code_point & 127) >> 2];
  return CharClass((four >> (2 * (code_point & 3))) & 3);
}

// What stands at the head of some bytes.
struct Utf8Char {
  enum class Kind {
    kValid,       // a character of `length` bytes
    kInvalid,     // `length` bytes that are no character: a maximal subpart (Unicode 16, 3.9)
    kIncomplete,  // all bytes that there are begin a character, but its end is missing
  };
  Kind kind;
  uint8_t length;
  uint32_t code_point;  // when kValid
};

// Looks at the head of [at, end); there must be at least one byte. Overlong forms, surrogates and
// values above U+10FFFF are invalid.
Utf8Char read_utf8(const char* at, const char* end);

bool is_valid_utf8(std::string_view text);

// Appends the code point, which must be valid.
void append_utf8(uint32_t code_point, std::string& out);

}  // namespace laplace
