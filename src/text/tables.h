// The constant tables of a tokenizer, and the builder that every source of tokenizers (merges,
// tokenizer.json, GPT-2's files) goes through: it checks them once, for all.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer.h"

namespace laplace {

// A merge of two adjacent tokens: lower ranks go first. Rank kNone: the pair does not merge.
struct Merge {
  static constexpr int32_t kNone = INT32_MAX;
  int32_t rank = kNone;
  TokenId id = -1;  // the token it makes
};

// From a pair of tokens to its merge: open addressing, at most half full.
class MergeTable {
 public:
  MergeTable() : MergeTable(0) {}
  explicit MergeTable(size_t merges);
  // False when the pair is there already.
  bool insert(TokenId left, TokenId right, Merge merge);
  Merge find(TokenId left, TokenId right) const {
    const uint64_t key = key_of(left, right);
    for (size_t at = slot_of(key);; at = (at + 1) & mask_) {
      const Slot& slot = slots_[at];
      if (slot.key == key) return slot.merge;
      if (slot.key == kEmpty) return {};
    }
  }

 private:
  static constexpr uint64_t kEmpty = UINT64_MAX;
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge;
  };
  static uint64_t key_of(TokenId left, TokenId right) {
    return (uint64_t{uint32_t(left)} << 32) | uint32_t(right);
  }
  size_t slot_of(uint64_t key) const {  // Fibonacci hashing: the product's highest bits
    return size_t(((key ^ (key >> 29)) * 0x9E3779B97F4A7C15) >> shift_);
  }

  std::vector<Slot> slots_;
  size_t mask_;
  int shift_;
};

// How other programs cut a special token out of a text, which we do not: kept for them.
struct SpecialForm {
  bool lstrip = false, rstrip = false, single_word = false;
  bool operator==(const SpecialForm&) const = default;
};

struct Tokenizer::Tables {
  struct Pair {
    TokenId left;
    TokenId right;
    TokenId id;
  };

  std::vector<std::string> pieces;       // by id; a special token's own text
  std::vector<Pair> merges;              // by rank
  std::vector<bool> special;             // by id
  std::map<TokenId, SpecialForm> forms;  // of special tokens that have one
  std::unordered_map<std::string, TokenId> specials;
  std::array<TokenId, 256> byte_ids = {};  // the token of every byte
  MergeTable table;
  uint64_t fingerprint = 0;

  std::string_view piece(TokenId id) const { return pieces[size_t(id)]; }
};

// Largest piece of a tokenizer in bytes: far beyond what text gives, and a bound for merges that
// double from one to the next.
constexpr size_t kMaxPieceBytes = 65536;

// Collects tokens and merges, refuses what does not fit together, and gives the tokenizer. Errors
// name `source` and the token.
class TablesBuilder {
 public:
  // `tokens`: how many there will be; their ids must be 0 .. tokens - 1, added in any order.
  TablesBuilder(std::string source, size_t tokens);

  void add_piece(TokenId id, std::string bytes);
  // `text` is what a person reads, not byte characters.
  void add_special(TokenId id, const std::string& text, SpecialForm form = {});

  // The next rank. Both parts and what they are together must be ordinary tokens already.
  void add_merge(const std::string& left, const std::string& right);
  void add_merge(TokenId left, TokenId right, TokenId id);

  std::string_view piece(TokenId id) const { return tables_->pieces[size_t(id)]; }

  std::shared_ptr<const Tokenizer::Tables> build();

 private:
  void place(TokenId id, std::string bytes);
  TokenId find(const std::string& bytes) const;

  std::string source_;
  std::shared_ptr<Tokenizer::Tables> tables_;
  std::vector<bool> placed_;
  size_t count_ = 0;
  std::unordered_map<std::string, TokenId> ids_;  // of ordinary pieces, by their bytes
};

}  // namespace laplace
