// See check_request.h.
#include "serve/engine/check_request.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "serve/engine/text_stream.h"

namespace laplace {

namespace {

void check_ids(const char* field, std::span<const TokenId> ids, int64_t limit) {
  for (const TokenId id : ids) {
    if (id >= 0 && id < limit) continue;
    fail_input("the token id ", id, " in ", field, " is outside the model's vocabulary; ids run ",
               "from 0 to ", limit - 1);
  }
}

void check_snapshot(const ModelConfig& config, const SequenceSnapshot& snapshot) {
  const auto V = config.vocab_size;
  const bool fits = int64_t(snapshot.slot.size() * sizeof(float)) == config.state_bytes() &&
                    int64_t(snapshot.logits.size()) == V && snapshot.position > 0 &&
                    std::ranges::all_of(snapshot.counts, [&](const TokenCount& count) {
                      return count.id >= 0 && count.id < V;
                    });
  if (!fits) fail_input("the state to go on from is not one of this model; begin without it");
}

// Something that may be picked must be left.
void check_allowed(const EngineModel& model, const Request& request) {
  const auto banned_early = [&](TokenId id) {
    return (id == model.end_of_text && !request.ignore_end_of_text) ||
           std::ranges::find(request.stop_token_ids, id) != request.stop_token_ids.end();
  };
  if (request.allowed_ids.empty()) {
    // As many ids must be listed as there are before it can be all of them.
    if (request.min_tokens == 0 || int64_t(request.stop_token_ids.size()) + 1 < model.num_ids())
      return;
    for (TokenId id = 0; id < model.num_ids(); ++id) {
      if (!banned_early(id)) return;
    }
    fail_input("stop_token_ids holds every token, so min_tokens leaves none; list fewer");
  }
  const bool some = std::ranges::any_of(request.allowed_ids, [&](TokenId id) {
    return id < model.num_ids() && (request.min_tokens == 0 || !banned_early(id));
  });
  if (!some) fail_input("allowed_token_ids leaves no token that could be picked; allow more");
}

}  // namespace

void check_numbers(const Request& request) {
  request.sampling.validate();
  if (request.max_tokens < 0) {
    fail_input("max_tokens is ", request.max_tokens, ", but must be 0 or more");
  }
  if (request.min_tokens < 0 || request.min_tokens > request.max_tokens) {
    fail_input("min_tokens is ", request.min_tokens, ", but must be from 0 to max_tokens (",
               request.max_tokens, ")");
  }
  if (request.n < 1) fail_input("n is ", request.n, ", but must be 1 or more");
  if (request.top_log_probs < -1 || request.top_log_probs > kMaxTopLogProbs) {
    fail_input("logprobs is ", request.top_log_probs, ", but must be from 0 to ", kMaxTopLogProbs);
  }
  for (const auto& [id, bias] : request.logit_bias) {
    if (!std::isfinite(bias)) fail_input("logit_bias of the token ", id, " is not a finite number");
  }
}

void check_request(const EngineModel& model, const Request& request) {
  const int64_t V = model.config.vocab_size;
  if (request.prompt.empty() && !request.from) {
    fail_input("the prompt is empty; give at least one token");
  }
  check_ids("the prompt", request.prompt, V);
  check_ids("stop_token_ids", request.stop_token_ids, V);
  check_ids("allowed_token_ids", request.allowed_ids, V);
  for (const auto& [id, bias] : request.logit_bias) check_ids("logit_bias", {&id, 1}, V);
  check_numbers(request);
  check_allowed(model, request);
  if (request.from) check_snapshot(model.config, *request.from);
  if (!request.stops.empty()) {
    if (!model.tokenizer) fail_input("stop strings need a tokenizer, and this model has none");
    StopFilter{request.stops};
  }
  int64_t before = 0;
  for (const int64_t place : request.snapshot_at) {
    if (place <= before || place > int64_t(request.prompt.size())) {
      fail_input("snapshot_at must ascend from 1 to the number of the prompt's tokens");
    }
    before = place;
  }
}

}  // namespace laplace
