// XXH64 over a tensor: its name, then its shape and dtype as one text, then its bytes. What
// fingerprints of models and checksums of states are made of. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace laplace {

uint64_t hash_text(std::string_view text, uint64_t seed);

// `dtype`: "Float", "BFloat16" or "Long", ATen's words. `seed`: the hash of what came before.
uint64_t hash_tensor(std::string_view name, std::span<const int64_t> shape, std::string_view dtype,
                     std::span<const std::byte> bytes, uint64_t seed);

// Sixteen hexadecimal digits.
std::string hash_digits(uint64_t hash);

}  // namespace laplace
