// One request on an engine, from the terminal: its events arrive on the calling thread.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "serve/engine/engine.h"

namespace laplace::cli {

struct RunResult {
  Finish finish;
  // Seconds from the submission to the first and to the last token; negative where there was none.
  double first_token = -1, last_token = -1;
  std::shared_ptr<const SequenceSnapshot> state;  // with snapshot_at_end, if there was one
};

struct RunEvents {
  std::function<void(const TokenResult& token, std::string_view text)> token;
  std::function<void(const TokenResult& token)> prompt;  // with prompt_log_probs
  std::function<bool()> interrupted;                     // asked some times a second
};

// Returns when the request is over; `request.n` must be 1. An interruption ends it within a step.
// The text that was held back at the end comes as finish.text. Throws Error(kFailure) when the
// engine failed, what submit() throws, and what an event's function throws.
RunResult run_request(Engine& engine, Request request, const RunEvents& events);

}  // namespace laplace::cli
