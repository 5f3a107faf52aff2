// Scoring: the log-probability a model gives each token of a sequence.
//
//   log p(x_i | x_0 .. x_{i-1}),  i = 1 .. n-1          (natural logarithm)
//
// The first token is only fed: nothing comes before it. Text is scored as a document, that is after
// the end-of-text token, so that every token of it has a log-probability. Bits per byte are
// -sum / ln 2 / bytes.
//
// Memory does not depend on the length, but for the result: the sequence passes in pieces of
// kScorePiece tokens, and the model's state carries over from one to the next.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "model/decoder.h"

namespace laplace {

inline constexpr int64_t kScorePiece = 512;  // tokens

// Form::kChunked evaluates a piece at once, Form::kRecurrent feeds token by token, as decoding
// does; they agree up to rounding. Returns n - 1 numbers (none for n < 2). Throws Error(kBadInput)
// for an id outside the model's vocabulary, before anything is computed. `progress` gets the number
// of tokens done, and ends the work by returning false (the result is then shorter). Several
// threads may score with one decoder.
std::vector<double> log_probs(const Decoder& decoder, std::span<const int32_t> ids, Form form,
                              const std::function<bool(int64_t)>& progress = {});

// "chunked" or "recurrent"; throws Error(kBadInput) for any other name.
Form parse_form(std::string_view name);

double bits_per_byte(double sum_of_log_probs, int64_t bytes);

}  // namespace laplace
