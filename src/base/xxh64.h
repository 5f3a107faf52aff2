// XXH64, a fast 64-bit hash against damage by accident (not against forgery): some 10 GB/s, and
// `xxhsum -H64` prints the same digits. Pure; any thread.
//
// Source: Y. Collet, "xxHash fast digest algorithm", specification 0.2,
// https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace laplace {

uint64_t xxh64(std::span<const std::byte> bytes, uint64_t seed = 0);

}  // namespace laplace
