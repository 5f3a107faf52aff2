// libFuzzer entry: any bytes as a config.json are refused as bad input, or give a configuration
// whose sizes are positive and which survives being written and read again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "model/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto config = laplace::ModelConfig::from_json(laplace::parse_json(text, "f"), "f");
    const auto again = laplace::ModelConfig::from_json(
        laplace::parse_json(laplace::to_text(config.to_json()), "g"), "g");
    if (!(again == config)) std::abort();
    const bool sound = config.num_parameters() > 0 && config.state_bytes() > 0 &&
                       config.kv_cache_bytes(8192) > 0 && config.log_decays().back() < 0;
    if (!sound) std::abort();
  } catch (const laplace::Error& error) {
    if (error.kind() != laplace::ErrorKind::kBadInput) std::abort();
  }
  return 0;
}
