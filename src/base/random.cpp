// See random.h.
#include "base/random.h"

#include <bit>
#include <utility>

namespace laplace {

uint64_t random_permutation(uint64_t seed, uint64_t stream, uint64_t n, uint64_t index) {
  if (n <= 1) return 0;
  const int half = (std::bit_width(n - 1) + 1) / 2;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  do {
    uint64_t left = index >> half;
    uint64_t right = index & mask;
    for (uint64_t round = 0; round < 4; ++round) {
      const uint64_t mixed = random_bits(seed, stream * 4 + round, right) & mask;
      left = std::exchange(right, left ^ mixed);
    }
    index = (left << half) | right;
  } while (index >= n);
  return index;
}

}  // namespace laplace
