// Counter-based random numbers: value n of stream (seed, stream) is a pure function of the three,
// so results do not depend on order, threads or neighbours, and nothing has to be saved to resume.
//
// Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), Philox4x32-10.
#pragma once

#include <array>
#include <cstdint>

namespace laplace {

// One block of four 32-bit words.
constexpr std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter_low,
                                         uint64_t counter_high) {
  std::array<uint32_t, 4> c = {uint32_t(counter_low), uint32_t(counter_low >> 32),
                               uint32_t(counter_high), uint32_t(counter_high >> 32)};
  uint32_t k0 = uint32_t(key);
  uint32_t k1 = uint32_t(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * c[2];
    c = {uint32_t(p1 >> 32) ^ c[1] ^ k0, uint32_t(p1), uint32_t(p0 >> 32) ^ c[3] ^ k1,
         uint32_t(p0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return c;
}

// 64 random bits: number `index` of the stream.
constexpr uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t index) {
  const auto words = philox(seed, index, stream);
  return uint64_t{words[0]} | (uint64_t{words[1]} << 32);
}

// Uniform in [0, 1), 53 bits.
constexpr double random_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
  return double(random_bits(seed, stream, index) >> 11) * 0x1p-53;
}

// A pseudo-random permutation of [0, n) evaluated at `index`, without a table: a four-round Feistel
// network over the smallest even number of bits that holds n, walked until it lands inside.
// Source: Black and Rogaway, "Ciphers with arbitrary finite domains" (CT-RSA 2002), cycle walking.
uint64_t random_permutation(uint64_t seed, uint64_t stream, uint64_t n, uint64_t index);

}  // namespace laplace
