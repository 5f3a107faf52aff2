// See picker.h.
#include "serve/engine/picker.h"

#include <algorithm>
#include <cmath>

#include "serve/engine/cpu/kernels.h"

namespace laplace {

namespace {

// The row with the request's biases and bans, in `out`.
void restrict_row(std::span<const float> logits, const PickRules& rules, bool too_early,
                  std::vector<float>* out) {
  const Request& request = *rules.request;
  if (request.allowed_ids.empty()) {
    out->assign(logits.begin(), logits.end());
  } else {
    out->assign(logits.size(), kNever);
    for (const TokenId id : request.allowed_ids) (*out)[size_t(id)] = logits[size_t(id)];
  }
  for (const auto& [id, bias] : request.logit_bias) (*out)[size_t(id)] += bias;
  if (!too_early) return;
  for (const TokenId id : request.stop_token_ids) (*out)[size_t(id)] = kNever;
}

}  // namespace

LogProbs::LogProbs(std::span<const float> logits) : logits_(logits) {
  static const cpu::Kernels& kernels = cpu::chosen_kernels();
  const auto n = int64_t(logits.size());
  const float largest = kernels.largest(logits.data(), n);
  log_total_ = double(largest) + std::log(kernels.sum_exp(logits.data(), n, largest));
}

std::vector<TokenLogProb> LogProbs::top(int count) const {
  // A heap of the likeliest so far, the least likely of them in front.
  const auto likelier = [](const TokenLogProb& a, const TokenLogProb& b) {
    return a.log_prob != b.log_prob ? a.log_prob > b.log_prob : a.id < b.id;
  };
  std::vector<TokenLogProb> heap;
  const size_t wanted = std::min(size_t(count), logits_.size());
  if (wanted == 0) return heap;
  for (size_t i = 0; i < logits_.size(); ++i) {
    if (heap.size() == wanted) {
      if (!(logits_[i] > heap.front().log_prob)) continue;  // an equal of a larger id stays out
      std::ranges::pop_heap(heap, likelier);
      heap.pop_back();
    }
    heap.push_back({TokenId(i), logits_[i]});
    std::ranges::push_heap(heap, likelier);
  }
  std::ranges::sort_heap(heap, likelier);
  for (TokenLogProb& entry : heap) entry.log_prob = of(entry.id);
  return heap;
}

TokenResult result_of(std::span<const float> logits, TokenId id, int top_log_probs) {
  TokenResult out;
  out.id = id;
  if (top_log_probs < 0) return out;
  const LogProbs log_probs(logits);
  out.log_prob = log_probs.of(id);
  out.top = log_probs.top(top_log_probs);
  return out;
}

TokenId pick_token(std::span<const float> logits, const PickRules& rules, const TokenCounts& counts,
                   int64_t generated, int64_t position) {
  thread_local Sampler sampler;
  thread_local std::vector<float> restricted;
  const Request& request = *rules.request;
  const bool too_early = generated < request.min_tokens;
  const bool plain = request.allowed_ids.empty() && request.logit_bias.empty() &&
                     (!too_early || request.stop_token_ids.empty());
  if (!plain) {
    restrict_row(logits, rules, too_early, &restricted);
    logits = restricted;
  }
  const bool ban_end = too_early && !request.ignore_end_of_text;
  const AllowedIds allowed{rules.num_ids, ban_end ? rules.end_of_text : -1};
  SamplingParams params = request.sampling;
  params.seed = rules.seed;
  return sampler.sample(logits, params, &counts, allowed, uint64_t(position));
}

}  // namespace laplace
