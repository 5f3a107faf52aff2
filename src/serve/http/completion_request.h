// The bodies of /v1/completions and /v1/chat/completions, read and checked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "serve/engine/sampler.h"
#include "serve/http/chat_template.h"
#include "serve/http/reply_format.h"
#include "text/tokenizer.h"

namespace laplace {

// Bounds on what one request may ask for; all are options of `laplace serve`.
struct ApiLimits {
  int64_t max_tokens = 1'000'000;      // of one choice
  int64_t default_tokens = 16;         // of /v1/completions, as OpenAI's API
  int64_t default_chat_tokens = 1024;  // of /v1/chat/completions
  int64_t max_n = 16;
  int64_t max_prompts = 64;
  int64_t max_choices = 128;  // prompts x n
  // Of echoed prompts in an answer: tokens x (logprobs + 1) x n.
  int64_t max_echo_log_probs = 1 << 20;
  int64_t max_stops = 16;
  int64_t max_stop_bytes = 1024;  // of one stop string
  int64_t max_token_list = 1024;  // logit_bias, stop_token_ids, allowed_token_ids
  int64_t max_messages = 10'000;
};

enum class SessionInput { kAuto, kNew, kWhole };

using PromptInput = std::variant<std::string, std::vector<TokenId>>;

struct CompletionRequest {
  bool chat = false;
  std::string model;                  // "" when not given
  std::vector<PromptInput> prompts;   // of completions, at least one
  std::vector<ChatMessage> messages;  // of chat, at least one
  SamplingParams sampling;            // its seed is drawn where none is given
  int64_t max_tokens = 0;
  int64_t min_tokens = 0;
  bool ignore_end_of_text = false;
  bool add_end_of_text = true;  // text begins a document
  std::vector<std::string> stops;
  std::vector<TokenId> stop_token_ids;
  std::vector<TokenId> allowed_ids;
  std::vector<std::pair<TokenId, float>> logit_bias;
  int n = 1;
  bool echo = false;
  int log_probs = -1;  // -1: none; else how many alternatives
  bool stream = false;
  StreamUsage stream_usage = StreamUsage::kNone;
  std::string session;  // "" for none
  SessionInput session_input = SessionInput::kAuto;
  std::string cache_salt;
};

// Ids that a request may name run from 0 to vocab_size - 1. Throws ApiError 400 that names the
// field. Pure; any thread.
CompletionRequest read_completion(std::string_view body, const ApiLimits& limits,
                                  int64_t vocab_size);
CompletionRequest read_chat(std::string_view body, const ApiLimits& limits, int64_t vocab_size);

// [A-Za-z0-9_-]{1,64}, or 400.
void check_session_name(std::string_view name, const std::string& param);

}  // namespace laplace
