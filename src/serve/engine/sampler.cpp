// See sampler.h.
#include "serve/engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/error.h"
#include "base/random.h"
#include "serve/engine/cpu/kernels.h"

namespace laplace {

namespace {

// The stream of random numbers that sampling owns; others with the same seed use other streams.
constexpr uint64_t kSamplingStream = 0x73616d706c65;  // "sample"

void check_range(const char* field, double value, double low, double high) {
  if (value >= low && value <= high) return;  // NaN is refused too
  fail_input(field, " is ", value, ", but must be a number from ", low, " to ", high);
}

// The largest of some logits and its smallest index.
struct Largest {
  float value = kNever;
  int32_t id = -1;
};

const cpu::Kernels& kernels() {
  static const cpu::Kernels& chosen = cpu::chosen_kernels();
  return chosen;
}

Largest largest_of(std::span<const float> logits, int32_t banned) {
  Largest best;
  const float value = kernels().largest(logits.data(), int64_t(logits.size()));
  const bool banned_is_less = std::isnan(value) || banned < 0 || size_t(banned) >= logits.size() ||
                              logits[size_t(banned)] < value;
  if (banned_is_less) {
    const auto at = std::ranges::find(logits, value);
    if (at != logits.end()) best = {value, int32_t(at - logits.begin())};
  } else {
    for (size_t i = 0; i < logits.size(); ++i) {
      if (logits[i] > best.value && int32_t(i) != banned) best = {logits[i], int32_t(i)};
    }
  }
  if (best.id < 0 || !std::isfinite(best.value)) {
    fail("the model's logits are not finite numbers; its weights are damaged or diverged");
  }
  return best;
}

}  // namespace

void SamplingParams::validate() const {
  constexpr double kLarge = 1e6;
  check_range("temperature", temperature, 0, kLarge);
  if (top_k < 0) fail_input("top_k is ", top_k, ", but must be 0 (off) or more");
  check_range("top_p", top_p, 0, 1);
  if (top_p == 0) fail_input("top_p is 0, but must be above 0 (1: off)");
  check_range("min_p", min_p, 0, 1);
  check_range("repetition_penalty", repetition_penalty, 0, kLarge);
  if (repetition_penalty == 0) fail_input("repetition_penalty is 0, but must be above 0 (1: off)");
  check_range("presence_penalty", presence_penalty, -kLarge, kLarge);
  check_range("frequency_penalty", frequency_penalty, -kLarge, kLarge);
}

bool SamplingParams::has_penalties() const {
  return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0;
}

TokenCounts::TokenCounts(int64_t vocab_size)
    : in_prompt_(size_t(vocab_size)), in_output_(size_t(vocab_size)) {
  seen_.reserve(size_t(vocab_size));
}

void TokenCounts::note(int32_t id) {
  if (!in_prompt(id) && in_output(id) == 0) seen_.push_back(id);
}

void TokenCounts::add_prompt(int32_t id) {
  note(id);
  in_prompt_[size_t(id)] = 1;
}

void TokenCounts::add_output(int32_t id, uint32_t times) {
  if (times == 0) return;
  note(id);
  in_output_[size_t(id)] += times;
}

void TokenCounts::clear() {
  for (const int32_t id : seen_) {
    in_prompt_[size_t(id)] = 0;
    in_output_[size_t(id)] = 0;
  }
  seen_.clear();
}

void Sampler::penalise(std::span<const float> logits, const SamplingParams& params,
                       const TokenCounts* counts, AllowedIds allowed) {
  scores_.assign(logits.begin(), logits.end());
  if (allowed.banned >= 0 && size_t(allowed.banned) < scores_.size()) {
    scores_[size_t(allowed.banned)] = kNever;
  }
  if (counts == nullptr || !params.has_penalties()) return;
  const float r = float(params.repetition_penalty);
  for (const int32_t id : counts->seen()) {
    if (size_t(id) >= scores_.size()) continue;
    float& score = scores_[size_t(id)];
    score = score > 0 ? score / r : score * r;
    const uint32_t times = counts->in_output(id);
    if (times == 0) continue;
    score -= float(params.frequency_penalty * times);
    score -= float(params.presence_penalty);
  }
}

int32_t Sampler::greedy(std::span<const float> logits, const SamplingParams& params,
                        const TokenCounts* counts, AllowedIds allowed) {
  if (counts == nullptr || !params.has_penalties()) return largest_of(logits, allowed.banned).id;
  penalise(logits, params, counts, allowed);
  return largest_of(scores_, allowed.banned).id;
}

// Keeps the order of the candidates, so that a draw depends on ids alone.
void Sampler::keep_top_k(int64_t k) {
  if (k == 0 || k >= int64_t(candidates_.size())) return;
  order_.clear();
  for (const Candidate& c : candidates_) order_.push_back(c.score);
  const auto kth = order_.begin() + (k - 1);
  std::nth_element(order_.begin(), kth, order_.end(), std::greater<>());
  std::erase_if(candidates_,
                [threshold = *kth](const Candidate& c) { return c.score < threshold; });
}

// A heap gives the likeliest one after another, so only what is kept gets sorted.
void Sampler::keep_top_p(double p) {
  if (p >= 1) return;
  double total = 0;
  for (const Candidate& c : candidates_) total += c.weight;
  const auto less_likely = [](const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score < b.score : a.id > b.id;
  };
  std::make_heap(candidates_.begin(), candidates_.end(), less_likely);
  auto heap_end = candidates_.end();
  for (double before = 0; heap_end != candidates_.begin() && before < p * total;) {
    std::pop_heap(candidates_.begin(), heap_end--, less_likely);  // the likeliest goes to the back
    before += heap_end->weight;
  }
  candidates_.erase(candidates_.begin(), heap_end);
}

double Sampler::select(std::span<const float> logits, const SamplingParams& params,
                       const TokenCounts* counts, AllowedIds allowed) {
  penalise(logits, params, counts, allowed);
  const float largest = largest_of(scores_, allowed.banned).value;
  const float inverse = float(std::min(1 / params.temperature, 1e30));
  // weight < min_p <=> score < ln min_p; -inf when it is off
  const float lowest = params.min_p > 0 ? float(std::log(params.min_p)) : kNever;
  candidates_.clear();
  weights_.resize(scores_.size());
  kernels().soften(scores_.data(), int64_t(scores_.size()), largest, inverse, scores_.data(),
                   weights_.data());
  for (size_t i = 0; i < scores_.size(); ++i) {
    const float score = scores_[i];
    if (!(score >= lowest) || score == kNever) continue;
    candidates_.push_back({score, weights_[i], int32_t(i)});
  }
  keep_top_k(params.top_k);
  keep_top_p(params.top_p);
  double total = 0;
  for (const Candidate& c : candidates_) total += c.weight;
  return total;
}

int32_t Sampler::sample(std::span<const float> logits, const SamplingParams& params,
                        const TokenCounts* counts, AllowedIds allowed, uint64_t position) {
  logits = logits.first(std::min(logits.size(), size_t(allowed.limit)));
  if (params.temperature == 0) return greedy(logits, params, counts, allowed);
  const double total = select(logits, params, counts, allowed);
  double left = random_uniform(params.seed, kSamplingStream, position) * total;
  int32_t last = candidates_.front().id;
  for (const Candidate& c : candidates_) {
    if (c.weight == 0) continue;
    last = c.id;
    left -= c.weight;
    if (left < 0) break;
  }
  return last;  // rounding may leave a little behind the last one
}

void Sampler::distribution(std::span<const float> logits, const SamplingParams& params,
                           const TokenCounts* counts, AllowedIds allowed, std::span<double> probs) {
  std::ranges::fill(probs, 0);
  logits = logits.first(std::min(logits.size(), size_t(allowed.limit)));
  if (params.temperature == 0) {
    probs[size_t(greedy(logits, params, counts, allowed))] = 1;
    return;
  }
  const double total = select(logits, params, counts, allowed);
  for (const Candidate& c : candidates_) probs[size_t(c.id)] = c.weight / total;
}

}  // namespace laplace
