// Tokenizer: making one, looking things up, text to ids and back. Reading and writing files is in
// tokenizer_json.cpp and tokenizer_files.cpp.
#include "text/tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "text/byte_alphabet.h"
#include "text/tables.h"

namespace laplace {

Tokenizer Tokenizer::from_merges(std::span<const std::pair<TokenId, TokenId>> merges,
                                 std::span<const std::string> specials) {
  TablesBuilder builder("the tokenizer from merges", 256 + merges.size() + specials.size());
  for (int i = 0; i < 256; ++i) builder.add_piece(i, std::string(1, char(alphabet_byte(i))));
  TokenId id = 256;
  for (const auto& [left, right] : merges) {
    if (left < 0 || left >= id || right < 0 || right >= id) {
      fail_input("the merge of tokens ", left, " and ", right, " (number ", id - 256,
                 " from 0) needs a token that is not there yet; give tokens from 0 to ", id - 1);
    }
    std::string bytes(builder.piece(left));
    bytes += builder.piece(right);
    builder.add_piece(id, std::move(bytes));
    builder.add_merge(left, right, id);
    ++id;
  }
  for (const std::string& special : specials) builder.add_special(id++, special);
  return Tokenizer(builder.build());
}

std::vector<TokenId> Tokenizer::encode(std::string_view text) const {
  std::vector<TokenId> ids;
  ids.reserve(text.size() / 4 + 1);
  // As many slots as the text could fill: a prompt must not pay for clearing a large cache.
  Encoder encoder(*this, std::clamp<size_t>(text.size() / 8, 16, 32768));
  encoder.encode(text, ids);
  return ids;
}

std::string Tokenizer::decode(std::span<const TokenId> ids) const {
  std::string bytes;
  bytes.reserve(ids.size() * 4);
  for (const TokenId id : ids) bytes += bytes_of(id);
  return bytes;
}

TokenId Tokenizer::vocab_size() const { return TokenId(tables_->pieces.size()); }

std::string_view Tokenizer::bytes_of(TokenId id) const {
  if (id < 0 || id >= vocab_size()) {
    fail_input("the token id ", id, " is outside the vocabulary; ids run from 0 to ",
               vocab_size() - 1);
  }
  return tables_->piece(id);
}

bool Tokenizer::is_special(TokenId id) const {
  return id >= 0 && id < vocab_size() && tables_->special[size_t(id)];
}

TokenId Tokenizer::special(std::string_view text) const {
  const auto at = tables_->specials.find(std::string(text));
  return at == tables_->specials.end() ? -1 : at->second;
}

uint64_t Tokenizer::fingerprint() const { return tables_->fingerprint; }

}  // namespace laplace
