// See pair_merges.h. Counts are kept up to date instead of being taken anew: a merge changes only
// the pairs beside its places. A heap gives the best pair; its entries may be out of date, which
// shows when they come up (a count only falls after the step that made the pair).
#include "text/pair_merges.h"

#include <algorithm>
#include <queue>
#include <unordered_map>

#include "base/error.h"
#include "text/byte_alphabet.h"
#include "text/tables.h"

namespace laplace {

namespace {

constexpr uint32_t kNowhere = UINT32_MAX;

uint64_t key_of(TokenId left, TokenId right) {
  return (uint64_t{uint32_t(left)} << 32) | uint32_t(right);
}

struct KeyHash {
  size_t operator()(uint64_t key) const {
    return size_t((key ^ (key >> 31)) * 0x9E3779B97F4A7C15 >> 16);
  }
};

// A pair: how often it is in the text, and the places where it is or was, ascending. New places of
// a pair come up only in the step that makes the younger of its tokens, which goes from left to
// right.
struct Pair {
  int64_t count = 0;
  std::vector<uint32_t> places;
};

// An entry of the heap; the greatest goes first.
struct Entry {
  int64_t count;
  uint64_t key;
  bool operator<(const Entry& other) const {
    return count != other.count ? count < other.count : key > other.key;
  }
};

class Merger {
 public:
  explicit Merger(std::span<const CountedPiece> pieces);

  // Makes the next token. False when no pair has `min_frequency` places.
  bool step(int64_t min_frequency);
  std::vector<std::pair<TokenId, TokenId>> take() { return std::move(merges_); }

 private:
  // A token of a piece, at the place of its first byte; kGone when it went into the one before.
  static constexpr TokenId kGone = -1;
  struct Symbol {
    TokenId id;
    uint32_t next;
    uint32_t previous;
    uint32_t piece;
  };

  void put_piece(uint32_t piece);
  bool best(int64_t min_frequency, Entry& entry);
  void merge_at(uint32_t place, TokenId left, TokenId right, TokenId made);
  void less(TokenId left, TokenId right, int64_t count);
  void more(TokenId left, TokenId right, int64_t count, uint32_t place);

  std::span<const CountedPiece> pieces_;
  std::vector<Symbol> symbols_;
  std::unordered_map<uint64_t, Pair, KeyHash> pairs_;
  std::vector<uint64_t> fresh_;  // pairs that this step made
  std::priority_queue<Entry> heap_;
  std::vector<uint32_t> lengths_;  // of tokens, in bytes
  std::vector<std::pair<TokenId, TokenId>> merges_;
};

Merger::Merger(std::span<const CountedPiece> pieces) : pieces_(pieces), lengths_(256, 1) {
  size_t total = 0;
  for (const CountedPiece& piece : pieces) total += piece.bytes.size();
  if (total >= kNowhere || pieces.size() >= kNowhere) {
    fail_input("the distinct pieces of the text have ", with_commas(int64_t(total)),
               " bytes, more than training can hold (4,294,967,295); train on less text");
  }
  symbols_.reserve(total);
  for (uint32_t i = 0; i < uint32_t(pieces.size()); ++i) put_piece(i);
  for (const auto& [key, pair] : pairs_) heap_.push({pair.count, key});
}

void Merger::put_piece(uint32_t piece) {
  const auto& [bytes, count] = pieces_[piece];
  const auto start = uint32_t(symbols_.size());
  const auto size = uint32_t(bytes.size());
  for (uint32_t i = 0; i < size; ++i) {
    const TokenId id = alphabet_index(uint8_t(bytes[i]));
    const uint32_t at = start + i;
    if (i > 0) {
      Pair& pair = pairs_[key_of(symbols_.back().id, id)];
      pair.count += count;
      pair.places.push_back(at - 1);
    }
    symbols_.push_back({id, i + 1 < size ? at + 1 : kNowhere, i > 0 ? at - 1 : kNowhere, piece});
  }
}

bool Merger::best(int64_t min_frequency, Entry& entry) {
  while (!heap_.empty()) {
    entry = heap_.top();
    if (entry.count < min_frequency) return false;
    heap_.pop();
    const auto at = pairs_.find(entry.key);
    if (at == pairs_.end()) continue;
    const int64_t now = at->second.count;
    if (now == entry.count) {
      const size_t length = size_t{lengths_[entry.key >> 32]} + lengths_[uint32_t(entry.key)];
      if (length <= kMaxPieceBytes) return true;
    } else if (now > 0) {
      heap_.push({now, entry.key});
    } else {
      pairs_.erase(at);
    }
  }
  return false;
}

void Merger::less(TokenId left, TokenId right, int64_t count) {
  const auto at = pairs_.find(key_of(left, right));
  if (at != pairs_.end()) at->second.count -= count;
}

void Merger::more(TokenId left, TokenId right, int64_t count, uint32_t place) {
  const uint64_t key = key_of(left, right);
  Pair& pair = pairs_[key];
  if (pair.places.empty()) fresh_.push_back(key);
  pair.count += count;
  pair.places.push_back(place);
}

void Merger::merge_at(uint32_t place, TokenId left, TokenId right, TokenId made) {
  Symbol& first = symbols_[place];
  if (first.id != left || first.next == kNowhere) return;  // changed since
  Symbol& second = symbols_[first.next];
  if (second.id != right) return;
  const int64_t count = pieces_[first.piece].count;
  if (first.previous != kNowhere) {
    const TokenId before = symbols_[first.previous].id;
    less(before, left, count);
    more(before, made, count, first.previous);
  }
  if (second.next != kNowhere) {
    Symbol& after = symbols_[second.next];
    less(right, after.id, count);
    more(made, after.id, count, place);
    after.previous = place;
  }
  first.id = made;
  first.next = second.next;
  second.id = kGone;
}

bool Merger::step(int64_t min_frequency) {
  Entry entry;
  if (!best(min_frequency, entry)) return false;
  const auto left = TokenId(entry.key >> 32);
  const auto right = TokenId(uint32_t(entry.key));
  const auto made = TokenId(lengths_.size());
  merges_.emplace_back(left, right);
  lengths_.push_back(lengths_[size_t(left)] + lengths_[size_t(right)]);
  const auto node = pairs_.extract(entry.key);
  fresh_.clear();
  for (const uint32_t place : node.mapped().places) merge_at(place, left, right, made);
  for (const uint64_t key : fresh_) heap_.push({pairs_.find(key)->second.count, key});
  return true;
}

}  // namespace

std::vector<std::pair<TokenId, TokenId>> find_merges(std::span<const CountedPiece> pieces,
                                                     int64_t limit, int64_t min_frequency,
                                                     const std::function<void(int64_t)>& progress) {
  Merger merger(pieces);
  for (int64_t done = 0; done < limit && merger.step(min_frequency);) progress(++done);
  return merger.take();
}

}  // namespace laplace
