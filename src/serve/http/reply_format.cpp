// See reply_format.h.
#include "serve/http/reply_format.h"

#include <algorithm>
#include <cmath>

#include "base/strings.h"
#include "text/unicode.h"

namespace laplace {

namespace {

// What "never" is shown as: JSON has no infinity. vLLM's choice.
constexpr float kLeastLogProb = -9999;

Json log_prob_json(float value) {
  if (std::isnan(value)) return nullptr;
  return std::max(value, kLeastLogProb);
}

std::string_view bytes_of(const Tokenizer& tokenizer, TokenId id) {
  // A model's head may be padded to more rows than the tokenizer has tokens.
  return id >= 0 && id < tokenizer.vocab_size() ? tokenizer.bytes_of(id) : std::string_view();
}

std::string quoted_json(std::string_view text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

int64_t characters(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; });
}

// U+0085, U+2028 and U+2029 as escapes: for clients that split a stream where Unicode ends a line.
// In JSON they stand in texts only.
std::string in_one_line(std::string json) {
  static constexpr std::pair<std::string_view, std::string_view> kEnds[] = {
      {"\xC2\x85", "\\u0085"}, {"\xE2\x80\xA8", "\\u2028"}, {"\xE2\x80\xA9", "\\u2029"}};
  for (const auto& [end, escape] : kEnds) {
    for (size_t at = 0; (at = json.find(end, at)) != std::string::npos; at += escape.size()) {
      json.replace(at, end.size(), escape);
    }
  }
  return json;
}

}  // namespace

Json Usage::to_json() const {
  return {{"prompt_tokens", prompt_tokens},
          {"completion_tokens", completion_tokens},
          {"total_tokens", prompt_tokens + completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", cached_tokens}}}};
}

std::string token_text(const Tokenizer& tokenizer, TokenId id) {
  if (id < 0 || id >= tokenizer.vocab_size()) return cat("token_id:", id);
  const std::string_view bytes = tokenizer.bytes_of(id);
  if (is_valid_utf8(bytes)) return std::string(bytes);
  std::string out = "bytes:";
  for (const char c : bytes) out += strf("\\x%02x", unsigned(static_cast<unsigned char>(c)));
  return out;
}

Json chat_log_probs(const Tokenizer& tokenizer, std::span<const TokenResult> tokens, int top) {
  const auto entry = [&](TokenId id, float log_prob) {
    Json bytes = Json::array();
    for (const char c : bytes_of(tokenizer, id)) bytes.push_back(static_cast<unsigned char>(c));
    return Json{{"token", token_text(tokenizer, id)},
                {"logprob", log_prob_json(log_prob)},
                {"bytes", std::move(bytes)}};
  };
  Json content = Json::array();
  for (const TokenResult& token : tokens) {
    Json item = entry(token.id, token.log_prob);
    Json& others = item["top_logprobs"] = Json::array();
    for (const TokenLogProb& other : token.top) {
      if (int(others.size()) == top) break;
      others.push_back(entry(other.id, other.log_prob));
    }
    content.push_back(std::move(item));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

void CompletionLogProbs::end_prompt() { offset_ += characters(decoder_.finish()); }

void CompletionLogProbs::add(const TokenResult& token) {
  tokens_.push_back(token_text(tokenizer_, token.id));
  log_probs_.push_back(log_prob_json(token.log_prob));
  offsets_.push_back(offset_ + (decoder_.in_character() ? 1 : 0));
  offset_ += characters(decoder_.push(token.id));
  if (std::isnan(token.log_prob)) {
    top_log_probs_.push_back(nullptr);
    return;
  }
  Json others = Json::object();
  int shown = 0;
  for (const TokenLogProb& other : token.top) {
    if (shown++ == top_) break;
    others[token_text(tokenizer_, other.id)] = log_prob_json(other.log_prob);
  }
  others[token_text(tokenizer_, token.id)] = log_prob_json(token.log_prob);
  top_log_probs_.push_back(std::move(others));
}

Json CompletionLogProbs::take() {
  Json out = {{"tokens", std::move(tokens_)},
              {"token_logprobs", std::move(log_probs_)},
              {"top_logprobs", std::move(top_log_probs_)},
              {"text_offset", std::move(offsets_)}};
  tokens_ = log_probs_ = top_log_probs_ = offsets_ = Json::array();
  return out;
}

ReplyFormat::ReplyFormat(bool chat, bool stream, StreamUsage stream_usage, std::string id,
                         int64_t created, const std::string& model)
    : chat_(chat),
      stream_usage_(stream_usage),
      id_(std::move(id)),
      created_(created),
      model_(model),
      object_(!chat    ? "text_completion"
              : stream ? "chat.completion.chunk"
                       : "chat.completion") {
  head_ =
      cat("data: {\"id\":", quoted_json(id_), ",\"object\":\"", object_, "\",\"created\":", created,
          ",\"model\":", in_one_line(quoted_json(model)), ",\"choices\":[");
}

std::string ReplyFormat::end_of_chunk(const Usage& so_far) const {
  switch (stream_usage_) {
    case StreamUsage::kNone:
      return "}\n\n";
    case StreamUsage::kLast:
      return ",\"usage\":null}\n\n";
    case StreamUsage::kEvery:
      break;
  }
  return cat(",\"usage\":", to_line(so_far.to_json()), "}\n\n");
}

std::string ReplyFormat::role_chunk(int index, const Usage& so_far) const {
  return cat(head_, "{\"index\":", index,
             ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
             "\"finish_reason\":null}]",
             end_of_chunk(so_far));
}

std::string ReplyFormat::text_chunk(int index, std::string_view text, const Json& log_probs,
                                    std::string_view finish, const Usage& so_far) const {
  std::string out = cat(head_, "{\"index\":", index, ",");
  if (!chat_) {
    out += cat("\"text\":", quoted_json(text));
  } else if (text.empty() && !finish.empty()) {
    out += "\"delta\":{}";
  } else {
    out += cat("\"delta\":{\"content\":", quoted_json(text), "}");
  }
  out += cat(",\"logprobs\":", log_probs.is_null() ? "null" : to_line(log_probs),
             ",\"finish_reason\":", finish.empty() ? "null" : quoted_json(finish), "}]",
             end_of_chunk(so_far));
  return in_one_line(std::move(out));
}

std::string ReplyFormat::usage_chunk(const Usage& usage) const {
  return cat(head_, "],\"usage\":", to_line(usage.to_json()), "}\n\n");
}

std::string ReplyFormat::error_chunk(const std::string& error_body) {
  return in_one_line(cat("data: ", error_body, "\n\n"));
}

Json ReplyFormat::choice(int index, std::string text, Json log_probs,
                         std::string_view finish) const {
  if (chat_) {
    return {
        {"index", index},
        {"message", {{"role", "assistant"}, {"content", std::move(text)}, {"refusal", nullptr}}},
        {"logprobs", std::move(log_probs)},
        {"finish_reason", finish}};
  }
  return {{"index", index},
          {"text", std::move(text)},
          {"logprobs", std::move(log_probs)},
          {"finish_reason", finish}};
}

std::string ReplyFormat::whole(Json choices, const Usage& usage) const {
  return to_line({{"id", id_},
                  {"object", object_},
                  {"created", created_},
                  {"model", model_},
                  {"choices", std::move(choices)},
                  {"usage", usage.to_json()}});
}

}  // namespace laplace
