// The golden tiny model for tests of serving, with a tokenizer of bytes.
#pragma once

#include <vector>

#include "model/decoder.h"
#include "support/golden.h"
#include "text/tokenizer.h"

namespace laplace::testing {

inline constexpr TokenId kTinyVocab = 97;
inline constexpr TokenId kTinyEndOfText = 96;

inline Decoder open_tiny() {
  const Path directory = golden_path("tiny");
  return Decoder::open(directory, ModelConfig::load(directory), at::kFloat, at::kCPU);
}

// Ids 0 to 93 are the printable characters of ASCII from '!' on; the model has fewer ids than it.
inline Tokenizer byte_tokenizer() {
  const std::vector<std::string> specials = {"<|endoftext|>"};
  return Tokenizer::from_merges({}, specials);
}

inline std::vector<TokenId> ids_of(const at::Tensor& tensor) {
  const auto* const data = tensor.const_data_ptr<int64_t>();
  return {data, data + tensor.numel()};
}

}  // namespace laplace::testing
