// See byte_alphabet.h.
#include "text/byte_alphabet.h"

#include <array>

#include "text/unicode.h"

namespace laplace {

namespace {

constexpr bool stands_for_itself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
  std::array<uint8_t, 256> byte_of_index = {};
  std::array<int, 256> index_of_byte = {};
  std::array<uint16_t, 256> char_of_byte = {};
  std::array<int, 512> byte_of_char = {};  // -1: not in the alphabet
};

constexpr Alphabet kAlphabet = [] {
  Alphabet alphabet;
  for (int& byte : alphabet.byte_of_char) byte = -1;
  int index = 0;
  int shifted = 0x100;
  for (const bool itself : {true, false}) {
    for (int byte = 0; byte < 256; ++byte) {
      if (stands_for_itself(byte) != itself) continue;
      const int code_point = itself ? byte : shifted++;
      alphabet.byte_of_index[size_t(index)] = uint8_t(byte);
      alphabet.index_of_byte[size_t(byte)] = index++;
      alphabet.char_of_byte[size_t(byte)] = uint16_t(code_point);
      alphabet.byte_of_char[size_t(code_point)] = byte;
    }
  }
  return alphabet;
}();

}  // namespace

uint8_t alphabet_byte(int index) { return kAlphabet.byte_of_index[size_t(index)]; }

int alphabet_index(uint8_t byte) { return kAlphabet.index_of_byte[byte]; }

std::string to_alphabet(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (const char byte : bytes) append_utf8(kAlphabet.char_of_byte[uint8_t(byte)], text);
  return text;
}

std::optional<std::string> from_alphabet(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at != end;) {
    const Utf8Char c = read_utf8(at, end);
    const bool known = c.kind == Utf8Char::Kind::kValid && c.code_point < 512 &&
                       kAlphabet.byte_of_char[c.code_point] >= 0;
    if (!known) return std::nullopt;
    bytes += char(kAlphabet.byte_of_char[c.code_point]);
    at += c.length;
  }
  return bytes;
}

}  // namespace laplace
