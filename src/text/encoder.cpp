// Encoder: cut into pieces, look each up in the cache, merge those it lacks.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <string>
#include <unordered_map>

#include "text/piece_merger.h"
#include "text/splitter.h"
#include "text/tables.h"
#include "text/tokenizer.h"

namespace laplace {

namespace {

// Pieces up to this length and this number of tokens have a slot in the cache; they are nearly all
// of a text.
constexpr size_t kCachedBytes = 15;
constexpr size_t kCachedTokens = 7;
// Longer ones, such as indentation, go into a hash map up to this length and this number of pieces.
constexpr size_t kMappedBytes = 128;
constexpr size_t kMappedPieces = 4096;

// A piece of 1 to 15 bytes as two words: its bytes, zeros, its length in the last byte.
// All zeros is no piece.
struct Key {
  uint64_t low;
  uint64_t high;
  bool operator==(const Key&) const = default;
};

// `readable`: bytes from piece.data() on that may be read.
Key key_of(std::string_view piece, size_t readable) {
  Key key = {0, 0};
  if (readable >= 16 && std::endian::native == std::endian::little) {
    // Two whole words, then the bytes behind the piece are shifted out: no loop over a length that
    // the processor cannot predict.
    std::memcpy(&key, piece.data(), 16);
    if (piece.size() <= 8) {
      key.low &= ~uint64_t{0} >> (64 - 8 * piece.size());
      key.high = 0;
    } else {
      key.high &= ~uint64_t{0} >> (128 - 8 * piece.size());
    }
  } else {
    std::memcpy(&key, piece.data(), piece.size());
  }
  key.high |= uint64_t{piece.size()} << 56;
  return key;
}

}  // namespace

// Caches of bounded size. Every short piece has two neighbouring slots where it may be: a new piece
// takes the first of the two and moves what was there to the second.
struct Encoder::State {
  struct Slot {
    Key key = {0, 0};
    uint32_t count = 0;
    std::array<TokenId, kCachedTokens> ids;
  };

  State(const Tokenizer::Tables& tables, size_t size)
      : slots(std::bit_ceil(std::max<size_t>(2, size))),
        shift(64 - std::countr_zero(slots.size())),
        merger(tables) {}

  Slot* pair_of(const Key& key) {
    const uint64_t mixed = (key.low ^ std::rotl(key.high, 23)) * 0x9E3779B97F4A7C15;
    return &slots[(mixed >> shift) & ~size_t{1}];
  }

  void encode_short(std::string_view piece, size_t readable, std::vector<TokenId>& ids);
  void encode_long(std::string_view piece, std::vector<TokenId>& ids);

  struct BytesHash {
    using is_transparent = void;
    size_t operator()(std::string_view bytes) const { return std::hash<std::string_view>()(bytes); }
  };

  std::vector<Slot> slots;
  int shift;
  std::unordered_map<std::string, std::vector<TokenId>, BytesHash, std::equal_to<>> mapped;
  PieceMerger merger;
};

void Encoder::State::encode_short(std::string_view piece, size_t readable,
                                  std::vector<TokenId>& ids) {
  const Key key = key_of(piece, readable);
  Slot* const slot = pair_of(key);
  const Slot* const hit = slot[0].key == key ? slot : slot + 1;
  if (hit->key == key) {
    if (hit->count == 1) return ids.push_back(hit->ids[0]);
    ids.insert(ids.end(), hit->ids.data(), hit->ids.data() + hit->count);
    return;
  }
  const size_t before = ids.size();
  merger.merge(piece, ids);
  const size_t count = ids.size() - before;
  if (count > kCachedTokens) return;
  slot[1] = slot[0];
  slot[0].key = key;
  slot[0].count = uint32_t(count);
  std::copy(ids.end() - std::ptrdiff_t(count), ids.end(), slot[0].ids.begin());
}

void Encoder::State::encode_long(std::string_view piece, std::vector<TokenId>& ids) {
  if (piece.size() > kMappedBytes) return merger.merge(piece, ids);
  const auto at = mapped.find(piece);
  if (at != mapped.end()) {
    ids.insert(ids.end(), at->second.begin(), at->second.end());
    return;
  }
  const auto before = std::ptrdiff_t(ids.size());
  merger.merge(piece, ids);
  if (mapped.size() >= kMappedPieces) mapped.clear();
  mapped.emplace(piece, std::vector<TokenId>(ids.begin() + before, ids.end()));
}

Encoder::Encoder(const Tokenizer& tokenizer, size_t cache_slots)
    : tables_(tokenizer.tables_), state_(std::make_unique<State>(*tables_, cache_slots)) {}

Encoder::~Encoder() = default;

void Encoder::encode(std::string_view text, std::vector<TokenId>& ids) {
  const char* const end = text.data() + text.size();
  Splitter splitter(text);
  std::string_view piece;
  while (splitter.next(piece)) {
    if (piece.size() <= kCachedBytes) {
      state_->encode_short(piece, size_t(end - piece.data()), ids);
    } else {
      state_->encode_long(piece, ids);
    }
  }
}

}  // namespace laplace
