// GPT-2's alphabet for bytes: every byte is written as one printable character, so that pieces of
// bytes can stand in JSON and in the merges' text file. Printable Latin-1 bytes stand for
// themselves, the 68 others for U+0100 upwards in their order. Byte tokens are numbered by these
// characters.
//
// Source: the published GPT-2 encoder (bytes_to_unicode); Hugging Face calls it ByteLevel.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace laplace {

// The byte whose token is number `index` of the 256, and the number of a byte's token.
uint8_t alphabet_byte(int index);
int alphabet_index(uint8_t byte);

// The bytes as text in this alphabet.
std::string to_alphabet(std::string_view bytes);
// The bytes that such a text stands for; nothing when it has a character outside the alphabet.
std::optional<std::string> from_alphabet(std::string_view text);

}  // namespace laplace
