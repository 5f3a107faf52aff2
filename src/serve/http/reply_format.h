// Results as OpenAI's API shapes them: whole answers and the chunks of a stream.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "serve/engine/request.h"
#include "text/tokenizer.h"

namespace laplace {

struct Usage {
  int64_t prompt_tokens = 0;  // cached ones included
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;

  Json to_json() const;
};

// Texts of tokens and their log-probabilities. `top`: how many alternatives are shown.
// A token whose bytes are not UTF-8 alone is "bytes:\xe2\x80", as in OpenAI's API.
std::string token_text(const Tokenizer& tokenizer, TokenId id);
// {"content":[{"token","logprob","bytes","top_logprobs"}]}
Json chat_log_probs(const Tokenizer& tokenizer, std::span<const TokenResult> tokens, int top);

// {"tokens","token_logprobs","top_logprobs","text_offset"}, token by token.
class CompletionLogProbs {
 public:
  CompletionLogProbs(const Tokenizer& tokenizer, int top)
      : tokenizer_(tokenizer), decoder_(tokenizer), top_(top) {}

  void add(const TokenResult& token);
  // The prompt's tokens are all there: a character does not go over that border.
  void end_prompt();
  // What was added since the last call; offsets go on.
  Json take();

 private:
  const Tokenizer& tokenizer_;
  StreamDecoder decoder_;
  int top_;
  int64_t offset_ = 0;  // in characters of text: of those that are whole
  Json tokens_ = Json::array(), log_probs_ = Json::array(), top_log_probs_ = Json::array(),
       offsets_ = Json::array();
};

// Where a stream tells its usage: not at all, in a last chunk, or there and in every chunk.
enum class StreamUsage { kNone, kLast, kEvery };

// One answer's envelope.
class ReplyFormat {
 public:
  ReplyFormat(bool chat, bool stream, StreamUsage stream_usage, std::string id, int64_t created,
              const std::string& model);

  const std::string& id() const { return id_; }

  // Server-sent events. `finish`: "" while it goes on. `so_far`: shown with kEvery.
  std::string role_chunk(int index, const Usage& so_far) const;
  std::string text_chunk(int index, std::string_view text, const Json& log_probs,
                         std::string_view finish, const Usage& so_far) const;
  std::string usage_chunk(const Usage& usage) const;
  static std::string error_chunk(const std::string& error_body);
  static std::string done() { return "data: [DONE]\n\n"; }

  // One entry of "choices" of a whole answer, and the answer.
  Json choice(int index, std::string text, Json log_probs, std::string_view finish) const;
  std::string whole(Json choices, const Usage& usage) const;

 private:
  std::string end_of_chunk(const Usage& so_far) const;

  bool chat_;
  StreamUsage stream_usage_;
  std::string id_;
  int64_t created_;
  std::string model_;
  std::string object_;
  std::string head_;  // of every chunk, up to its choices
};

}  // namespace laplace
