// Validation: the loss over a held-out split, exactly, and in bits per byte of its text.
//
//   bits per byte = sum of -log2 p(token) / bytes of the text
//
// which, unlike the loss a token, does not depend on the tokenizer.
#pragma once

#include <cstdint>

#include "data/loader.h"
#include "model/decoder.h"

namespace laplace {

struct ValidationResult {
  double loss = 0;           // mean over the tokens, nats
  double bits_per_byte = 0;  // 0 where the bytes of the text are not known
  int64_t tokens = 0;
};

struct ValidationOptions {
  int64_t max_tokens = 0;  // 0: the whole split
  int64_t rows = 8;        // windows at once
  // Windows follow one another with the state carried along (`rows` stretches of the split side by
  // side), as the model is used; otherwise each window starts from the zero state.
  bool carry = false;
};

ValidationResult validate(const Decoder& model, const SequentialLoader& loader,
                          const ValidationOptions& options);

}  // namespace laplace
