// The model whose states state_fuzz.cpp reads and fuzz_seeds.cpp writes.
#pragma once

#include "model/config.h"

namespace laplace {

inline constexpr const char* kFuzzFingerprint = "0123456789abcdef";

inline ModelConfig fuzz_config() {
  ModelConfig config;
  config.vocab_size = 13;
  config.hidden_size = 4;
  config.num_hidden_layers = 2;
  config.num_heads = 2;
  config.head_k_dim = 1;
  config.head_v_dim = 2;
  config.conv_kernel = 2;
  return config;
}

}  // namespace laplace
