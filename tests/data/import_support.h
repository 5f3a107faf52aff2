// A small tokenizer and compressed files for the tests of import and preparation.
#pragma once

#include <zlib.h>
#include <zstd.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data_support.h"
#include "text/tokenizer.h"

namespace laplace {

inline std::string gzip(std::string_view text) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

inline std::string zstd(std::string_view text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

// The token of one byte in GPT-2's order: printable bytes first.
inline TokenId byte_token(unsigned char byte) {
  const auto printable = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
  };
  TokenId id = 0;
  for (int b = 0; b < 256; ++b) {
    if (printable(b) == printable(byte) && b < byte) ++id;
  }
  return printable(byte) ? id : 188 + id;
}

// Merges whose use depends on where pieces end: newlines, spaces, letters, digits, signs.
inline Tokenizer small_tokenizer() {
  const auto pair = [](char a, char b) { return std::pair(byte_token(a), byte_token(b)); };
  const std::vector<std::pair<TokenId, TokenId>> merges = {
      pair('\n', '\n'), pair(' ', 'a'),  pair('a', 'b'), pair(' ', ' '), pair('1', '2'),
      pair('-', '-'),   pair('\'', 's'), pair('s', 's'), {256, 256},     {259, 259},
      pair(' ', '1'),   pair('\n', ' '), pair(' ', '\n')};
  return Tokenizer::from_merges(merges, std::vector<std::string>{"<|endoftext|>"});
}

// Numbered lines of words, without a final newline.
inline std::string some_text(size_t lines, int salt = 0) {
  std::string text;
  for (size_t i = 0; i < lines; ++i) {
    text += cat(i > 0 ? "\n" : "", "line ", i * 7 + size_t(salt), " ab  aab 's--12");
    if (i % 5 == 0) text += "\n\n  indented \xC3\xA9\xE3\x80\x80 \xFF";
  }
  return text;
}

}  // namespace laplace
