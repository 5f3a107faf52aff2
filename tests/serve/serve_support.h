// The golden tiny model for tests of serving, with a tokenizer of bytes.
#pragma once

#include <ATen/ops/empty.h>

#include <vector>

#include "model/decoder.h"
#include "serve/engine/weights.h"
#include "support/golden.h"
#include "text/tokenizer.h"

namespace laplace::testing {

inline constexpr TokenId kTinyVocab = 97;
inline constexpr TokenId kTinyEndOfText = 96;

inline Decoder open_tiny() {
  const Path directory = golden_path("tiny");
  return Decoder::open(directory, ModelConfig::load(directory), at::kFloat, at::kCPU);
}

// All parameters of a source as the decoder takes them, float32.
inline std::vector<at::Tensor> weights_from(const WeightSource& source, const ModelConfig& config) {
  std::vector<at::Tensor> weights;
  for (const ParameterSpec& spec : parameter_table(config)) {
    weights.push_back(at::empty(spec.shape, at::kFloat));
    const bool vector = spec.shape.size() == 1;
    const int64_t n = vector ? spec.numel() : spec.row_size();
    for (int64_t r = 0; r < spec.numel() / n; ++r) {
      source.read(spec.name, r, weights.back().mutable_data_ptr<float>() + r * n);
    }
  }
  return weights;
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
