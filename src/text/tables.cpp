// See tables.h.
#include "text/tables.h"

#include <bit>

#include "base/error.h"
#include "base/strings.h"
#include "text/byte_alphabet.h"
#include "text/unicode.h"

namespace laplace {

namespace {

// Over bytes in a fixed order, numbers with their lowest byte first: the same on every machine.
class Hash {
 public:
  void bytes(std::string_view text) { value_ = fnv1a(text, value_); }
  void number(uint64_t n) {
    char bytes_of[8];
    for (int i = 0; i < 8; ++i) bytes_of[i] = char((n >> (8 * i)) & 0xFF);
    bytes({bytes_of, sizeof bytes_of});
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = fnv1a("");
};

uint64_t fingerprint_of(const Tokenizer::Tables& tables) {
  Hash hash;
  hash.number(tables.pieces.size());
  for (size_t id = 0; id < tables.pieces.size(); ++id) {
    hash.number(tables.pieces[id].size() * 2 + (tables.special[id] ? 1 : 0));
    hash.bytes(tables.pieces[id]);
  }
  hash.number(tables.merges.size());
  for (const auto& merge : tables.merges) {
    hash.number((uint64_t{uint32_t(merge.left)} << 32) | uint32_t(merge.right));
    hash.number(uint32_t(merge.id));
  }
  return hash.value();
}

}  // namespace

MergeTable::MergeTable(size_t merges) {
  const size_t size = std::bit_ceil(std::max<size_t>(16, 2 * merges));
  slots_.resize(size);
  mask_ = size - 1;
  shift_ = 64 - std::countr_zero(size);
}

bool MergeTable::insert(TokenId left, TokenId right, Merge merge) {
  const uint64_t key = key_of(left, right);
  size_t at = slot_of(key);
  while (slots_[at].key != kEmpty) {
    if (slots_[at].key == key) return false;
    at = (at + 1) & mask_;
  }
  slots_[at] = {key, merge};
  return true;
}

TablesBuilder::TablesBuilder(std::string source, size_t tokens)
    : source_(std::move(source)), tables_(std::make_shared<Tokenizer::Tables>()) {
  if (tokens > size_t{INT32_MAX}) fail_input(source_, " has more than 2,147,483,647 tokens");
  tables_->pieces.resize(tokens);
  tables_->special.resize(tokens);
  placed_.resize(tokens);
  ids_.reserve(tokens);
}

void TablesBuilder::place(TokenId id, std::string bytes) {
  if (id < 0 || size_t(id) >= placed_.size() || placed_[size_t(id)]) {
    const bool twice = id >= 0 && size_t(id) < placed_.size();
    fail_input(source_, ": the token ", laplace::quoted(bytes), " has the id ", id,
               twice ? ", which another token has too" : ", which leaves ids below it unused",
               "; number the ", placed_.size(), " tokens 0, 1, 2, ... without gaps");
  }
  if (bytes.empty()) fail_input(source_, ": the token ", id, " is empty; give it a text");
  if (bytes.size() > kMaxPieceBytes) {
    fail_input(source_, ": the token ", id, " is ", bytes.size(), " bytes long; at most ",
               kMaxPieceBytes, " are allowed");
  }
  placed_[size_t(id)] = true;
  ++count_;
  tables_->pieces[size_t(id)] = std::move(bytes);
}

void TablesBuilder::add_piece(TokenId id, std::string bytes) {
  place(id, bytes);
  if (const auto [at, fresh] = ids_.emplace(std::move(bytes), id); !fresh) {
    fail_input(source_, ": the tokens ", at->second, " and ", id, " are both ",
               laplace::quoted(at->first), "; remove one");
  }
}

void TablesBuilder::add_special(TokenId id, const std::string& text, SpecialForm form) {
  if (!is_valid_utf8(text)) {
    fail_input(source_, ": the special token ", laplace::quoted(text),
               " is not UTF-8; choose another text");
  }
  place(id, text);
  tables_->special[size_t(id)] = true;
  if (form != SpecialForm()) tables_->forms[id] = form;
  if (!tables_->specials.emplace(text, id).second) {
    fail_input(source_, ": the special token ", laplace::quoted(text),
               " is given twice; remove one");
  }
}

TokenId TablesBuilder::find(const std::string& bytes) const {
  const auto at = ids_.find(bytes);
  if (at == ids_.end() && tables_->specials.contains(bytes)) {
    fail_input(source_, ": a merge (number ", tables_->merges.size(), " from 0) makes ",
               laplace::quoted(bytes), ", which is a special token; take another text for that");
  }
  if (at == ids_.end()) {
    fail_input(source_, ": a merge (number ", tables_->merges.size(), " from 0) needs the token ",
               laplace::quoted(bytes), ", which the vocabulary lacks; add it or remove the merge");
  }
  return at->second;
}

void TablesBuilder::add_merge(const std::string& left, const std::string& right) {
  add_merge(find(left), find(right), find(left + right));
}

void TablesBuilder::add_merge(TokenId left, TokenId right, TokenId id) {
  tables_->merges.push_back({left, right, id});
}

std::shared_ptr<const Tokenizer::Tables> TablesBuilder::build() {
  if (count_ != placed_.size()) {
    fail_input(source_, " has ids without a token; number the tokens 0, 1, 2, ... without gaps");
  }
  for (int byte = 0; byte < 256; ++byte) {
    const std::string one(1, char(byte));
    const auto at = ids_.find(one);
    if (at == ids_.end()) {
      fail_input(source_, ": the vocabulary has no token for the byte ", byte, " (",
                 laplace::quoted(to_alphabet(one)),
                 "); only byte-level tokenizers with all 256 are known");
    }
    tables_->byte_ids[size_t(byte)] = at->second;
  }
  for (const auto& [text, id] : tables_->specials) {
    // In tokenizer.json both would have the same key.
    const auto bytes = from_alphabet(text);
    if (bytes && ids_.contains(*bytes)) {
      fail_input(source_, ": the special token ", laplace::quoted(text),
                 " is also written like an ordinary token; choose another text");
    }
  }
  tables_->table = MergeTable(tables_->merges.size());
  for (size_t rank = 0; rank < tables_->merges.size(); ++rank) {
    const auto& [left, right, id] = tables_->merges[rank];
    if (!tables_->table.insert(left, right, {int32_t(rank), id})) {
      fail_input(source_, ": the merge of ", laplace::quoted(piece(left)), " and ",
                 laplace::quoted(piece(right)), " is listed twice; remove the later one");
    }
  }
  tables_->fingerprint = fingerprint_of(*tables_);
  return std::move(tables_);
}

}  // namespace laplace
