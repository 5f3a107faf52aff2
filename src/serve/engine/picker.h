// From a row of logits to a token and its log-probabilities: what one sequence asked for, and
// nothing of its neighbours. No LibTorch here.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "serve/engine/request.h"
#include "serve/engine/sampler.h"

namespace laplace {

// Fixed for a request.
struct PickRules {
  const Request* request = nullptr;
  uint64_t seed = 0;
  int64_t num_ids = 0;       // ids from here on are never picked
  TokenId end_of_text = -1;  // banned before min_tokens, with the stop tokens
};

// Log-probabilities of one row of logits [V]; see TokenResult.
class LogProbs {
 public:
  explicit LogProbs(std::span<const float> logits);
  float of(TokenId id) const { return float(double(logits_[size_t(id)]) - log_total_); }
  // The `count` likeliest, one pass over the row.
  std::vector<TokenLogProb> top(int count) const;

 private:
  std::span<const float> logits_;
  double log_total_;  // log of the sum of exp(logit)
};

// A token with what the request wants to know of it. `top_log_probs` as in Request.
TokenResult result_of(std::span<const float> logits, TokenId id, int top_log_probs);

// The next token; `generated` tokens have been, `position` tokens were fed. Throws
// Error(kFailure) when the logits are not finite. May be called from several threads at once (it
// keeps buffers for each thread).
TokenId pick_token(std::span<const float> logits, const PickRules& rules, const TokenCounts& counts,
                   int64_t generated, int64_t position);

}  // namespace laplace
