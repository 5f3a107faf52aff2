// See xxh64.h. Step numbers are those of the specification, section "XXH64 algorithm description".
#include "base/xxh64.h"

#include <array>
#include <bit>
#include <cstring>

namespace laplace {

namespace {

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87;
constexpr uint64_t kPrime2 = 0xC2B2AE3D27D4EB4F;
constexpr uint64_t kPrime3 = 0x165667B19E3779F9;
constexpr uint64_t kPrime4 = 0x85EBCA77C2B2AE63;
constexpr uint64_t kPrime5 = 0x27D4EB2F165667C5;

template <class Word>
Word load(const std::byte* at) {
  Word word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

uint64_t round(uint64_t accumulator, uint64_t lane) {
  return std::rotl(accumulator + lane * kPrime2, 31) * kPrime1;
}

// Steps 1 to 3: four accumulators over stripes of 32 bytes, then made one. Advances `at`.
uint64_t digest_stripes(const std::byte*& at, size_t stripes, uint64_t seed) {
  std::array<uint64_t, 4> lanes = {seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1};
  for (; stripes > 0; --stripes, at += 32) {
    lanes[0] = round(lanes[0], load<uint64_t>(at));
    lanes[1] = round(lanes[1], load<uint64_t>(at + 8));
    lanes[2] = round(lanes[2], load<uint64_t>(at + 16));
    lanes[3] = round(lanes[3], load<uint64_t>(at + 24));
  }
  uint64_t hash = std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) +
                  std::rotl(lanes[3], 18);
  for (const uint64_t lane : lanes) hash = (hash ^ round(0, lane)) * kPrime1 + kPrime4;
  return hash;
}

// Step 5: the last bytes, fewer than 32.
uint64_t digest_tail(uint64_t hash, const std::byte* at, size_t left) {
  for (; left >= 8; left -= 8, at += 8) {
    hash = std::rotl(hash ^ round(0, load<uint64_t>(at)), 27) * kPrime1 + kPrime4;
  }
  if (left >= 4) {
    hash = std::rotl(hash ^ (load<uint32_t>(at) * kPrime1), 23) * kPrime2 + kPrime3;
    left -= 4, at += 4;
  }
  for (; left > 0; --left, ++at) {
    hash = std::rotl(hash ^ (std::to_integer<uint64_t>(*at) * kPrime5), 11) * kPrime1;
  }
  return hash;
}

}  // namespace

uint64_t xxh64(std::span<const std::byte> bytes, uint64_t seed) {
  const std::byte* at = bytes.data();
  uint64_t hash = bytes.size() >= 32 ? digest_stripes(at, bytes.size() / 32, seed) : seed + kPrime5;
  hash = digest_tail(hash + bytes.size(), at, bytes.size() % 32);
  hash = (hash ^ (hash >> 33)) * kPrime2;  // step 6: every input bit reaches every output bit
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

}  // namespace laplace
