// A sequence's whole state on the host: to save it, to go on from it later, or to fork it.
//
// No LibTorch here.
#pragma once

#include <cstdint>
#include <vector>

#include "text/tokenizer.h"

namespace laplace {

// How often one id occurred in a sequence; what penalties need to know.
struct TokenCount {
  TokenId id = 0;
  bool in_prompt = false;
  uint32_t in_output = 0;  // times
  bool operator==(const TokenCount&) const = default;
};

// Immutable once made and shared by pointer (std::shared_ptr<const SequenceSnapshot>): a fork is
// another pointer. A sequence that goes on from it has the same bits as the one it was taken of,
// on the same model, dtype, instruction set and device.
struct SequenceSnapshot {
  // The slot's bytes, float32, layer by layer: window [k,D] (oldest input first), then S
  // [H,dk,dv]. ModelConfig::state_bytes() bytes.
  std::vector<float> slot;
  std::vector<float> logits;       // [V], of the last token fed
  std::vector<TokenCount> counts;  // each id once, in the order of first occurrence
  int64_t position = 0;            // tokens fed so far, at least 1

  // Host memory it takes, for caches bound by bytes.
  int64_t bytes() const {
    return int64_t(sizeof(float) * (slot.size() + logits.size()) +
                   sizeof(TokenCount) * counts.size() + sizeof(*this));
  }
};

}  // namespace laplace
