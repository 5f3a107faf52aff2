// What is asked of the engine, and what it answers.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/engine/sampler.h"
#include "serve/engine/snapshot.h"
#include "text/tokenizer.h"

namespace laplace {

using Clock = std::chrono::steady_clock;
using RequestId = uint64_t;  // never 0, never used twice in a process

struct TokenLogProb {
  TokenId id = -1;
  float log_prob = 0;
};

// Log-probabilities are log softmax of the model's logits over all V columns: before penalties,
// biases and temperature, as vLLM's default ("raw_logprobs"). Natural logarithm.
struct TokenResult {
  TokenId id = -1;
  // NaN where it was not asked for, and for a first token that nothing came before.
  float log_prob = std::numeric_limits<float>::quiet_NaN();
  std::vector<TokenLogProb> top = {};  // the likeliest, downwards; equals by id
};

inline constexpr int kMaxTopLogProbs = 20;

struct Request {
  std::vector<TokenId> prompt;                   // fed after `from`
  std::shared_ptr<const SequenceSnapshot> from;  // null: a fresh sequence
  SamplingParams sampling;                       // index i of n draws with seed + i
  int64_t max_tokens = 256;                      // 0: the prompt is fed and nothing generated
  int64_t min_tokens = 0;               // nothing ends it before: no end of text, stop token
                                        // or stop string
  bool ignore_end_of_text = false;      // end of text is a token like any other
  std::vector<TokenId> stop_token_ids;  // end the generation; not part of it
  std::vector<std::pair<TokenId, float>> logit_bias;  // added to logits, before penalties
  std::vector<TokenId> allowed_ids;                   // only these may be picked; empty: all
  std::vector<std::string> stops;                     // stop strings, also across token borders
  int top_log_probs = -1;         // -1: none; 0: of the token itself; at most 20
  bool prompt_log_probs = false;  // on_prompt is called
  int n = 1;                      // sequences that go on from one prompt
  int priority = 0;               // larger goes first; equals: first come
  std::optional<Clock::time_point> deadline;
  // Offsets in `prompt`, ascending, 1 .. prompt.size(): on_snapshot when so many tokens of it have
  // been fed (a prefix cache).
  std::vector<int64_t> snapshot_at;
  // on_snapshot before on_finish, when the sequence has ended by itself or was cancelled after its
  // prompt (sessions). All tokens that were reported have then been fed, those of a stop string
  // too; end of text and stop tokens have not.
  bool snapshot_at_end = false;
};

// kStop: end of text, a stop token or a stop string. kLength: max_tokens.
enum class FinishReason { kStop, kLength, kCancelled, kDeadline, kError };
// "stop", "length", "cancelled", "deadline", "error"
std::string_view finish_reason_name(FinishReason reason);

struct Finish {
  FinishReason reason = FinishReason::kStop;
  std::string text = {};                   // the rest of the text that was held back, whole UTF-8
  std::string error = {};                  // kError: one sentence
  std::string stop = {};                   // the stop string that ended it, if one did
  std::optional<TokenId> stop_token = {};  // end of text or the stop token that ended it
  int64_t prompt_tokens = 0;               // of `prompt`, fed
  int64_t cached_tokens = 0;               // position of `from`
  int64_t generated_tokens = 0;            // reported by on_token
};

// Where the results of one request go. Called on the engine's thread: must not block, must not
// throw (an exception cancels the request). Nothing is called after the last on_finish; every index
// 0 .. n-1 gets exactly one on_finish, unless submit() threw. The engine drops its pointer then.
class Sink {
 public:
  virtual ~Sink() = default;
  // With prompt_log_probs: the prompt's tokens in order, in one or several calls, before on_token.
  virtual void on_prompt(std::span<const TokenResult> tokens) { (void)tokens; }
  // `text` is whole UTF-8 and may be empty: text that could begin a stop string is held back.
  virtual void on_token(int index, const TokenResult& token, std::string_view text) = 0;
  // `prompt_offset`: which of snapshot_at (index 0 then), or -1: at the end of sequence `index`.
  virtual void on_snapshot(int index, int64_t prompt_offset,
                           std::shared_ptr<const SequenceSnapshot> snapshot) {
    (void)index, (void)prompt_offset, (void)snapshot;
  }
  virtual void on_finish(int index, const Finish& finish) = 0;
};

}  // namespace laplace
