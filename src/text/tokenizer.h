// Byte-level BPE: text to token ids and back.
//
// A tokenizer is a list of merges over bytes plus special tokens (such as "<|endoftext|>"). Text is
// cut by GPT-2's pattern (splitter.h) and each piece is merged by rank. Reads and writes Hugging
// Face's `tokenizer.json`; also opens GPT-2's `vocab.bpe` + `encoder.json`.
//
// Thread rules: const members may be called from any number of threads at once. encode() starts
// with an empty cache of pieces every time; see Encoder for the fast path over many texts.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files.h"

namespace laplace {

using TokenId = int32_t;

class Tokenizer {
 public:
  // Opens `tokenizer.json`, a directory that has one, or a directory with GPT-2's `vocab.bpe` and
  // `encoder.json`. Throws Error(kBadInput) naming the file, the field and the remedy.
  static Tokenizer open(const Path& path);

  // A tokenizer from merges in rank order: entry i makes token 256 + i of two earlier tokens.
  // Token ids 0..255 are GPT-2's byte order (printable bytes first), as Hugging Face trains them.
  // The specials take the last ids, in their order.
  static Tokenizer from_merges(std::span<const std::pair<TokenId, TokenId>> merges,
                               std::span<const std::string> specials);

  // The text of a `tokenizer.json`; `source` names it in errors. Safe on any bytes.
  static Tokenizer parse_json(std::string_view text, const std::string& source);

  // Writes `tokenizer.json` into `directory` (made when missing), atomically.
  void save(const Path& directory) const;
  std::string to_json() const;

  // Ids of `text`, in which nothing is special: "<|endoftext|>" is ordinary text.
  // Any bytes are allowed; those that are not UTF-8 take the byte tokens and round-trip.
  std::vector<TokenId> encode(std::string_view text) const;
  // The bytes of the ids (special tokens give their text). Throws on an id out of range.
  std::string decode(std::span<const TokenId> ids) const;

  // Ids run from 0 to vocab_size() - 1, special tokens included.
  TokenId vocab_size() const;
  // The bytes of one token, valid as long as the tokenizer.
  std::string_view bytes_of(TokenId id) const;
  bool is_special(TokenId id) const;
  // The id of a special token by its text, -1 when there is none.
  TokenId special(std::string_view text) const;
  // "<|endoftext|>", -1 when the tokenizer has none.
  TokenId end_of_text() const { return special("<|endoftext|>"); }
  // A hash of everything that decides ids: equal for tokenizers that encode alike.
  uint64_t fingerprint() const;

  // Internal to src/text: see tables.h.
  struct Tables;
  explicit Tokenizer(std::shared_ptr<const Tables> tables) : tables_(std::move(tables)) {}
  const Tables& tables() const { return *tables_; }

 private:
  friend class Encoder;
  std::shared_ptr<const Tables> tables_;  // shared and constant: copies are cheap
};

// Encodes much text on one thread, with a bounded cache of pieces. Not thread-safe: one per thread.
class Encoder {
 public:
  // The cache holds `cache_slots` pieces (rounded up to a power of two), 48 bytes each.
  explicit Encoder(const Tokenizer& tokenizer, size_t cache_slots = 32768);
  ~Encoder();
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  // Appends the ids of `text` to `ids`.
  void encode(std::string_view text, std::vector<TokenId>& ids);

 private:
  struct State;
  std::shared_ptr<const Tokenizer::Tables> tables_;
  std::unique_ptr<State> state_;
};

// Turns a stream of ids into text that is always whole, valid UTF-8: incomplete sequences are held
// back until they are complete; bytes that can never become valid are replaced by U+FFFD, one for
// each maximal subpart (The Unicode Standard, 3.9; what browsers do). At any time, the text so far
// and finish() are together the UTF-8 reading of all bytes so far.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  // The text that became whole by this id (may be empty). Special tokens give no text, and neither
  // do ids outside the vocabulary (a model's head may be padded to more rows). Never throws on ids.
  std::string push(TokenId id);
  // Whether the bytes so far end within a character: they are held back.
  bool in_character() const { return !held_.empty(); }
  // What was held back, replaced by U+FFFD; the decoder is then as new.
  std::string finish();

 private:
  Tokenizer tokenizer_;
  std::string held_;  // at most three bytes
};

}  // namespace laplace
