// libFuzzer entry: any bytes as a tokenizer.json are either opened, and then encode and round-trip,
// or refused as bad input.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto tokenizer = laplace::Tokenizer::parse_json(text, "fuzz");
    if (tokenizer.decode(tokenizer.encode(text)) != text) std::abort();
    const auto again = laplace::Tokenizer::parse_json(tokenizer.to_json(), "fuzz, saved");
    if (again.fingerprint() != tokenizer.fingerprint()) std::abort();
  } catch (const laplace::Error& error) {
    if (error.kind() != laplace::ErrorKind::kBadInput) std::abort();
  }
  return 0;
}
