// libFuzzer entry: any bytes as a saved state are refused as bad input, or give a state of the
// model's sizes that counts no token twice. Alignment is as bad as it can be.
#include <cstdint>
#include <cstdlib>
#include <set>
#include <span>
#include <vector>

#include "base/error.h"
#include "fuzz_model.h"
#include "serve/engine/state_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const laplace::ModelConfig config = laplace::fuzz_config();
  std::vector<uint8_t> shifted(size + 1);
  std::copy(data, data + size, shifted.begin() + 1);
  try {
    const auto bytes = std::as_bytes(std::span(shifted)).subspan(1);
    const auto state = laplace::parse_state(bytes, config, laplace::kFuzzFingerprint, "fuzz");
    std::set<laplace::TokenId> ids;
    bool sound = int64_t(state->slot.size() * sizeof(float)) == config.state_bytes() &&
                 int64_t(state->logits.size()) == config.vocab_size && state->position > 0;
    for (const laplace::TokenCount& count : state->counts) {
      sound &= count.id >= 0 && count.id < config.vocab_size && ids.insert(count.id).second;
    }
    if (!sound) std::abort();
  } catch (const laplace::Error& error) {
    if (error.kind() != laplace::ErrorKind::kBadInput) std::abort();
  }
  return 0;
}
