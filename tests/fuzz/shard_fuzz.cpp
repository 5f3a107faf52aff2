// Fuzz entry: the shard header parser on any bytes and any file size. It must throw laplace::Error
// or return a header that agrees with the size.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

#include "base/error.h"
#include "data/shard.h"

namespace {

void parse(std::span<const std::byte> bytes, uint64_t file_bytes) {
  try {
    const auto header = laplace::parse_shard_header(bytes, file_bytes, "fuzz");
    const bool sound = header.tokens > 0 && header.tokens <= laplace::kMaxShardTokens &&
                       uint64_t(laplace::kShardHeaderBytes) +
                               uint64_t(header.tokens) * uint64_t(header.token_bytes) ==
                           file_bytes;
    if (!sound) std::abort();
  } catch (const laplace::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  parse(bytes, size);
  uint64_t claimed = 0;
  if (size >= sizeof claimed) {
    std::memcpy(&claimed, data, sizeof claimed);
    parse(bytes.subspan(sizeof claimed), claimed);
  }
  return 0;
}
