// See completion_request.h.
#include "serve/http/completion_request.h"

#include <sodium.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "serve/http/request_fields.h"
#include "serve/http/unoffered_fields.h"

namespace laplace {

namespace {

constexpr int64_t kMaxTopLogProbsInRequest = 20;
constexpr size_t kMaxSaltBytes = 256;

std::string item(std::string_view param, size_t i) { return cat(param, "[", i, "]"); }

std::vector<TokenId> ids_of(JsonArray array, const std::string& param, int64_t vocab_size) {
  std::vector<TokenId> ids;
  ids.reserve(array.size());
  for (const JsonElement element : array) {
    ids.push_back(TokenId(integer_of(element, item(param, ids.size()), 0, vocab_size - 1)));
  }
  return ids;
}

std::vector<TokenId> short_ids(RequestFields& fields, std::string_view name,
                               const ApiLimits& limits, int64_t vocab_size) {
  const auto element = fields.any(name);
  if (!element) return {};
  const std::string param(name);
  const JsonArray array = array_of(*element, param);
  if (int64_t(array.size()) > limits.max_token_list) {
    fail_field(param, param, " lists ", array.size(), " ids, but at most ", limits.max_token_list,
               " are taken");
  }
  return ids_of(array, param, vocab_size);
}

std::vector<std::pair<TokenId, float>> bias_of(RequestFields& fields, const ApiLimits& limits,
                                               int64_t vocab_size) {
  const auto element = fields.any("logit_bias");
  if (!element) return {};
  std::vector<std::pair<TokenId, float>> bias;
  for (const auto& [key, value] : object_of(*element, "logit_bias")) {
    if (int64_t(bias.size()) == limits.max_token_list) {
      fail_field("logit_bias", "logit_bias has more than ", limits.max_token_list, " entries");
    }
    TokenId id = -1;
    const auto got = std::from_chars(key.data(), key.data() + key.size(), id);
    if (got.ec != std::errc() || got.ptr != key.data() + key.size() || id < 0 || id >= vocab_size) {
      fail_field("logit_bias", "logit_bias: ", quoted(key),
                 " is not a token id; they run from 0 to ", vocab_size - 1);
    }
    bias.emplace_back(id, float(number_of(value, cat("logit_bias.", id), -100, 100)));
  }
  return bias;
}

std::vector<std::string> stops_of(RequestFields& fields, const ApiLimits& limits) {
  const auto element = fields.any("stop");
  if (!element) return {};
  std::vector<std::string> stops;
  const auto add = [&](JsonElement text, const std::string& param) {
    const std::string_view stop = text_of(text, param);
    if (stop.empty() || int64_t(stop.size()) > limits.max_stop_bytes) {
      fail_field(param, param, " must have 1 to ", limits.max_stop_bytes, " bytes");
    }
    stops.emplace_back(stop);
  };
  if (element->is_string()) {
    add(*element, "stop");
    return stops;
  }
  const JsonArray array = array_of(*element, "stop");
  if (int64_t(array.size()) > limits.max_stops) {
    fail_field("stop", "stop lists ", array.size(), " texts, but at most ", limits.max_stops,
               " are taken");
  }
  for (const JsonElement text : array) add(text, item("stop", stops.size()));
  return stops;
}

void read_sampling(RequestFields& fields, SamplingParams& sampling) {
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  sampling.temperature = fields.number("temperature", 0, 100).value_or(1);
  sampling.top_p = fields.number("top_p", 0, 1).value_or(1);
  if (sampling.top_p == 0) fail_field("top_p", "top_p is 0, but must be above 0 and at most 1");
  sampling.top_k = std::max<int64_t>(fields.integer("top_k", -1, kLargest).value_or(0), 0);
  sampling.min_p = fields.number("min_p", 0, 1).value_or(0);
  sampling.repetition_penalty = fields.number("repetition_penalty", 0.01, 100).value_or(1);
  sampling.presence_penalty = fields.number("presence_penalty", -2, 2).value_or(0);
  sampling.frequency_penalty = fields.number("frequency_penalty", -2, 2).value_or(0);
  const auto seed = fields.any("seed");
  if (seed && seed->is_uint64()) {  // all 64 bits, as what we print
    sampling.seed = uint64_t(*seed);
  } else if (seed) {
    sampling.seed =
        uint64_t(integer_of(*seed, "seed", std::numeric_limits<int64_t>::min(), kLargest));
  } else {
    randombytes_buf(&sampling.seed, sizeof sampling.seed);
  }
  // What the checks above leave open; the sampler has the last word.
  try {
    sampling.validate();
  } catch (const Error& error) {
    fail_field("", error.what());
  }
}

void read_stream(RequestFields& fields, CompletionRequest& out) {
  out.stream = fields.boolean("stream").value_or(false);
  const auto options = fields.any("stream_options");
  if (!options) return;
  bool last = false, every = false;
  for (const auto& [key, value] : object_of(*options, "stream_options")) {
    if (value.is_null()) continue;
    if (key == "include_usage") {
      last = boolean_of(value, "stream_options.include_usage");
    } else if (key == "continuous_usage_stats") {
      every = boolean_of(value, "stream_options.continuous_usage_stats");
    } else if (key != "include_obfuscation") {
      fail_field("stream_options", "stream_options has the unknown field ", quoted(key));
    } else if (boolean_of(value, "stream_options.include_obfuscation")) {
      fail_field("stream_options.include_obfuscation", "stream_options.include_obfuscation is not ",
                 "offered; leave it out");
    }
  }
  if (!out.stream) fail_field("stream_options", "stream_options needs stream to be true");
  // As in vLLM, the second alone does nothing.
  if (last) out.stream_usage = every ? StreamUsage::kEvery : StreamUsage::kLast;
}

void read_session(RequestFields& fields, CompletionRequest& out) {
  if (const auto name = fields.text("session")) {
    check_session_name(*name, "session");
    out.session = std::string(*name);
  }
  if (const auto input = fields.text("session_input")) {
    if (*input == "new") {
      out.session_input = SessionInput::kNew;
    } else if (*input == "whole") {
      out.session_input = SessionInput::kWhole;
    } else {
      fail_field("session_input", "session_input must be \"new\" or \"whole\"");
    }
    if (out.session.empty()) fail_field("session_input", "session_input needs a session");
  }
  if (const auto salt = fields.text("cache_salt")) {
    if (salt->empty() || salt->size() > kMaxSaltBytes) {
      fail_field("cache_salt", "cache_salt must have 1 to ", kMaxSaltBytes, " bytes");
    }
    out.cache_salt = std::string(*salt);
  }
}

// What both endpoints have, but the number of tokens.
void read_common(RequestFields& fields, const ApiLimits& limits, int64_t vocab_size,
                 CompletionRequest& out) {
  if (const auto model = fields.text("model")) out.model = std::string(*model);
  read_sampling(fields, out.sampling);
  out.n = int(fields.integer("n", 1, limits.max_n).value_or(1));
  out.stops = stops_of(fields, limits);
  out.stop_token_ids = short_ids(fields, "stop_token_ids", limits, vocab_size);
  out.allowed_ids = short_ids(fields, "allowed_token_ids", limits, vocab_size);
  out.logit_bias = bias_of(fields, limits, vocab_size);
  out.ignore_end_of_text = fields.boolean("ignore_eos").value_or(false);
  out.add_end_of_text = fields.boolean("add_special_tokens").value_or(true);
  out.min_tokens = fields.integer("min_tokens", 0, limits.max_tokens).value_or(0);
  if (out.min_tokens > out.max_tokens) {
    fail_field("min_tokens", "min_tokens is ", out.min_tokens, ", more than max_tokens (",
               out.max_tokens, ")");
  }
  read_stream(fields, out);
  read_session(fields, out);
  refuse_unoffered(fields);
  fields.ignore({"user", "metadata", "store", "service_tier", "safety_identifier",
                 "prompt_cache_key", "request_id", "skip_special_tokens",
                 "spaces_between_special_tokens", "detokenize", "parallel_tool_calls",
                 "prompt_cache_retention", "verbosity", "reasoning_effort"});
}

std::vector<PromptInput> prompts_of(RequestFields& fields, const ApiLimits& limits,
                                    int64_t vocab_size) {
  const auto element = fields.any("prompt");
  if (!element) fail_field("prompt", "prompt is missing; give a text, or \"\" to begin a document");
  if (element->is_string()) return {std::string(std::string_view(*element))};
  if (!element->is_array()) {
    fail_field("prompt", "prompt must be a text or a list of texts or token ids");
  }
  const JsonArray array = array_of(*element, "prompt");
  if (array.size() == 0) {
    fail_field("prompt", "prompt is an empty list; give \"\" to begin a document");
  }
  const JsonElement first = array.at(0);
  if (first.is_number()) return {ids_of(array, "prompt", vocab_size)};
  if (int64_t(array.size()) > limits.max_prompts) {
    fail_field("prompt", "prompt lists ", array.size(), " prompts, but at most ",
               limits.max_prompts, " are taken");
  }
  std::vector<PromptInput> prompts;
  for (const JsonElement prompt : array) {
    const std::string param = item("prompt", prompts.size());
    if (first.is_string()) {
      prompts.emplace_back(std::string(text_of(prompt, param)));
    } else {
      prompts.emplace_back(ids_of(array_of(prompt, param), param, vocab_size));
    }
  }
  return prompts;
}

// A part of a content, in the forms in which clients send texts, and replies back.
std::string_view part_of(JsonElement part, const std::string& param) {
  if (part.is_string()) return std::string_view(part);
  const JsonObject object = object_of(part, param);
  JsonElement type, text;
  const bool typed = object.at_key("type").get(type) == simdjson::SUCCESS;
  const std::string_view kind = typed ? text_of(type, param + ".type") : "";
  const bool refusal = kind == "refusal";
  if (!refusal && kind != "text" && kind != "input_text" && kind != "output_text") {
    fail_field(param, param, " is no text; only text is taken, and no address is ever fetched");
  }
  const std::string_view key = refusal ? "refusal" : "text";
  if (object.at_key(key).get(text) != simdjson::SUCCESS) fail_field(param, param, " has no ", key);
  return text_of(text, cat(param, ".", key));
}

std::string content_of(JsonElement element, const std::string& param) {
  if (element.is_null()) return {};
  if (element.is_string()) return std::string(std::string_view(element));
  std::string content;
  size_t i = 0;
  for (const JsonElement part : array_of(element, param))
    content += part_of(part, item(param, i++));
  return content;
}

ChatMessage message_of(JsonElement element, const std::string& param) {
  static constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};
  ChatMessage message;
  bool has_content = false;
  for (const auto& [key, value] : object_of(element, param)) {
    if (key == "role") {
      message.role = std::string(text_of(value, param + ".role"));
    } else if (key == "content") {
      message.content = content_of(value, param + ".content");
      has_content = !value.is_null();
    } else if (key == "tool_calls" || key == "function_call") {
      const bool empty = value.is_null() || (value.is_array() && JsonArray(value).size() == 0);
      if (!empty)
        fail_field(cat(param, ".", key),
                   "tools are not offered; leave calls of them out of the messages");
    }
    // name, refusal, annotations, ...: what clients send back of a reply; it says nothing here.
  }
  if (std::ranges::find(kRoles, message.role) == std::end(kRoles)) {
    fail_field(param + ".role", param, ".role is ", quoted(message.role),
               ", but must be system, developer, user, assistant or tool");
  }
  // A reply that called tools has none, and clients send it back.
  if (!has_content && message.role != "assistant")
    fail_field(param + ".content", param, " has no content");
  return message;
}

std::vector<ChatMessage> messages_of(RequestFields& fields, const ApiLimits& limits) {
  const auto element = fields.any("messages");
  if (!element) fail_field("messages", "messages is missing; give a list of messages");
  const JsonArray array = array_of(*element, "messages");
  if (array.size() == 0 || int64_t(array.size()) > limits.max_messages) {
    fail_field("messages", "messages lists ", array.size(), " messages, but 1 to ",
               limits.max_messages, " are taken");
  }
  std::vector<ChatMessage> messages;
  for (const JsonElement message : array) {
    messages.push_back(message_of(message, item("messages", messages.size())));
  }
  return messages;
}

// The newer name has the last word; benchmarks give both, to either endpoint.
int64_t max_tokens_of(RequestFields& fields, const ApiLimits& limits, int64_t fallback) {
  const auto old_name = fields.integer("max_tokens", 0, limits.max_tokens);
  const auto new_name = fields.integer("max_completion_tokens", 0, limits.max_tokens);
  return new_name.value_or(old_name.value_or(fallback));
}

// A session is one sequence.
void check_single(const CompletionRequest& request) {
  if (request.session.empty()) return;
  if (request.n != 1) fail_field("n", "n is ", request.n, ", but a session has one reply");
  if (!request.chat && request.prompts.size() != 1) {
    fail_field("prompt", "a session takes one prompt");
  }
  if (request.echo) fail_field("echo", "echo is not offered in a session");
}

}  // namespace

void check_session_name(std::string_view name, const std::string& param) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  };
  if (name.empty() || name.size() > 64 || !std::ranges::all_of(name, allowed)) {
    fail_field(param, "the session's name ", quoted(name),
               " must be 1 to 64 letters, digits, _ or -");
  }
}

CompletionRequest read_completion(std::string_view body, const ApiLimits& limits,
                                  int64_t vocab_size) {
  RequestFields fields(body);
  CompletionRequest out;
  out.max_tokens = max_tokens_of(fields, limits, limits.default_tokens);
  out.prompts = prompts_of(fields, limits, vocab_size);
  out.echo = fields.boolean("echo").value_or(false);
  out.log_probs = int(fields.integer("logprobs", 0, kMaxTopLogProbsInRequest).value_or(-1));
  read_common(fields, limits, vocab_size, out);
  const int64_t best_of = fields.integer("best_of", 1, limits.max_n).value_or(out.n);
  if (best_of != out.n) {
    fail_field("best_of", "best_of is ", best_of, ", but must equal n (", out.n, ")");
  }
  if (int64_t(out.prompts.size()) * out.n > limits.max_choices) {
    fail_field("n", out.prompts.size(), " prompts times n (", out.n, ") are more than ",
               limits.max_choices, " choices");
  }
  fields.refuse("suffix", "text is only continued, never filled in");
  fields.finish();
  check_single(out);
  return out;
}

CompletionRequest read_chat(std::string_view body, const ApiLimits& limits, int64_t vocab_size) {
  RequestFields fields(body);
  CompletionRequest out;
  out.chat = true;
  out.max_tokens = max_tokens_of(fields, limits, limits.default_chat_tokens);
  out.messages = messages_of(fields, limits);
  const bool log_probs = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, kMaxTopLogProbsInRequest);
  if (top.value_or(0) > 0 && !log_probs) {
    fail_field("top_logprobs", "top_logprobs needs logprobs to be true");
  }
  if (log_probs) out.log_probs = int(top.value_or(0));
  read_common(fields, limits, vocab_size, out);
  refuse_unoffered_in_chat(fields);
  fields.ignore({"prediction"});
  fields.finish();
  check_single(out);
  return out;
}

}  // namespace laplace
