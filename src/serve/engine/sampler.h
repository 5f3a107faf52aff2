// Choosing the next token: from logits to a distribution, and from it to an id.
//
// The steps and their order are those of vLLM (vllm/v1/sample), as tests/data/golden/README.md
// fixes them (section sampling.json):
//
//   1. repetition penalty r, ids in prompt or output:  logit > 0 ? logit / r : logit * r
//   2. frequency penalty f and presence penalty p, ids in the output:  logit -= f * count + p
//   3. temperature 0: the largest logit, the smallest id among equals. Otherwise logits /
//   temperature
//   4. min_p: ids below min_p times the largest probability are dropped
//   5. top_k: ids below the k-th largest logit that is left are dropped; its equals stay
//   6. top_p: sorted downwards, an id is dropped when those before it sum to top_p or more
//   7. softmax over what is left
//
// Randomness is counter-based (base/random.h): the draw is a function of (seed, position), so what
// a sequence gets does not depend on the sequences beside it. No LibTorch here: logits are host
// memory.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace laplace {

struct SamplingParams {
  double temperature = 1;  // >= 0
  int64_t top_k = 0;       // 0: off
  double top_p = 1;        // (0, 1], 1: off
  double min_p = 0;        // [0, 1], 0: off
  double repetition_penalty = 1;
  double presence_penalty = 0;
  double frequency_penalty = 0;
  uint64_t seed = 0;

  // Throws Error(kBadInput) naming the first field that is out of range.
  void validate() const;
  bool has_penalties() const;
};

// How often each id occurs in a sequence: all that penalties need to know of it, so a sequence's
// memory does not grow with its length. Five bytes an id of the vocabulary. Copies are independent.
class TokenCounts {
 public:
  // Ids run from 0 to vocab_size - 1.
  explicit TokenCounts(int64_t vocab_size);

  void add_prompt(int32_t id);
  void add_output(int32_t id, uint32_t times = 1);
  void clear();

  bool in_prompt(int32_t id) const { return in_prompt_[size_t(id)] != 0; }
  uint32_t in_output(int32_t id) const { return in_output_[size_t(id)]; }
  // Every id that occurs, once, in the order of its first occurrence.
  std::span<const int32_t> seen() const { return seen_; }

 private:
  void note(int32_t id);

  std::vector<uint8_t> in_prompt_;
  std::vector<uint32_t> in_output_;
  std::vector<int32_t> seen_;  // room for the whole vocabulary from the start
};

// The logit of an id that may not be picked.
inline constexpr float kNever = -std::numeric_limits<float>::infinity();

// Which ids may be picked at all: those below `limit` (a model's head may be padded to more rows
// than its tokenizer has tokens) but `banned` (end of text, before a minimum of tokens; -1: none).
struct AllowedIds {
  int64_t limit = 0;
  int32_t banned = -1;
};

// Not thread-safe (it keeps its buffers): one per thread.
class Sampler {
 public:
  // Draws from the distribution; `position` counts the tokens before this one. `counts` may be null
  // when there are no penalties. Throws Error(kFailure) when a logit in the way is not finite (-inf
  // aside, which means "never").
  int32_t sample(std::span<const float> logits, const SamplingParams& params,
                 const TokenCounts* counts, AllowedIds allowed, uint64_t position);

  // The distribution that sample() draws from: the probability of every id, exact zeros for what
  // was dropped. `probs` has as many elements as `logits`. Throws as sample() does.
  void distribution(std::span<const float> logits, const SamplingParams& params,
                    const TokenCounts* counts, AllowedIds allowed, std::span<double> probs);

 private:
  struct Candidate {
    float score;   // (logit - largest) / temperature, at most 0
    float weight;  // exp(score)
    int32_t id;
  };

  int32_t greedy(std::span<const float> logits, const SamplingParams& params,
                 const TokenCounts* counts, AllowedIds allowed);
  // Steps 1 and 2 into scores_, and the ban.
  void penalise(std::span<const float> logits, const SamplingParams& params,
                const TokenCounts* counts, AllowedIds allowed);
  // Steps 1 to 6 into candidates_; returns the sum of their weights.
  double select(std::span<const float> logits, const SamplingParams& params,
                const TokenCounts* counts, AllowedIds allowed);
  void keep_top_k(int64_t k);
  void keep_top_p(double p);

  std::vector<float> scores_, weights_;
  std::vector<float> order_;
  std::vector<Candidate> candidates_;
};

}  // namespace laplace
