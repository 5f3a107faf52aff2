// See tensor_hash.h.
#include "serve/engine/tensor_hash.h"

#include "base/strings.h"
#include "base/xxh64.h"

namespace laplace {

uint64_t hash_text(std::string_view text, uint64_t seed) {
  return xxh64(std::as_bytes(std::span(text)), seed);
}

uint64_t hash_tensor(std::string_view name, std::span<const int64_t> shape, std::string_view dtype,
                     std::span<const std::byte> bytes, uint64_t seed) {
  std::string form = "[";
  for (size_t i = 0; i < shape.size(); ++i) form += cat(i == 0 ? "" : ", ", shape[i]);
  return xxh64(bytes, hash_text(cat(form, "]", dtype), hash_text(name, seed)));
}

std::string hash_digits(uint64_t hash) {
  return strf("%016llx", static_cast<unsigned long long>(hash));
}

}  // namespace laplace
