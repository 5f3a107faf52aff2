// Encoder: cut into pieces, look each up in the cache, merge those it lacks.
#include <array>
#include <bit>
#include <cstring>

#include "text/piece_merger.h"
#include "text/splitter.h"
#include "text/tables.h"
#include "text/tokenizer.h"

namespace laplace {

namespace {

// Pieces up to this length and this number of tokens are cached; they are nearly all of a text.
constexpr size_t kCachedBytes = 15;
constexpr size_t kCachedTokens = 7;

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

// A cache of fixed size: every piece has two neighbouring slots where it may be. A new piece takes
// the first of the two and moves what was there to the second.
struct Encoder::State {
  struct Slot {
    Key key = {0, 0};
    uint32_t count = 0;
    std::array<TokenId, kCachedTokens> ids;
  };

  explicit State(size_t size) : slots(std::bit_ceil(std::max<size_t>(2, size))) {
    shift = 64 - std::countr_zero(slots.size());
  }

  Slot* pair_of(const Key& key) {
    const uint64_t mixed = (key.low ^ std::rotl(key.high, 23)) * 0x9E3779B97F4A7C15;
    return &slots[(mixed >> shift) & ~size_t{1}];
  }

  std::vector<Slot> slots;
  int shift;
  PieceMerger merger;
};

Encoder::Encoder(const Tokenizer& tokenizer, size_t cache_slots)
    : tables_(tokenizer.tables_), state_(std::make_unique<State>(cache_slots)) {}

Encoder::~Encoder() = default;

void Encoder::encode(std::string_view text, std::vector<TokenId>& ids) {
  const char* const end = text.data() + text.size();
  Splitter splitter(text);
  std::string_view piece;
  while (splitter.next(piece)) {
    if (piece.size() > kCachedBytes) {
      state_->merger.merge(*tables_, piece, ids);
      continue;
    }
    const Key key = key_of(piece, size_t(end - piece.data()));
    State::Slot* const slot = state_->pair_of(key);
    const State::Slot* const hit = slot[0].key == key ? slot : slot + 1;
    if (hit->key == key) {
      ids.insert(ids.end(), hit->ids.data(), hit->ids.data() + hit->count);
      continue;
    }
    const size_t before = ids.size();
    state_->merger.merge(*tables_, piece, ids);
    const size_t count = ids.size() - before;
    if (count > kCachedTokens) continue;
    slot[1] = slot[0];
    slot[0].key = key;
    slot[0].count = uint32_t(count);
    std::copy(ids.end() - std::ptrdiff_t(count), ids.end(), slot[0].ids.begin());
  }
}

}  // namespace laplace
