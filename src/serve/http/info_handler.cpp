// See info_handler.h.
#include "serve/http/info_handler.h"

#include <algorithm>

#include "base/percent_encoding.h"
#include "base/process.h"
#include "serve/http/handlers_common.h"
#include "serve/http/reply_format.h"
#include "serve/http/request_fields.h"

namespace laplace {

namespace {

HttpResponse json_response(const Json& json) {
  return {200, "application/json", to_line(json), {}};
}

}  // namespace

// Says only whether new requests are taken, and is answered where bytes are read, so that load does
// not delay it.
HttpResponse InfoHandler::health() const {
  if (!context_.draining) return json_response({{"status", "ok"}});
  return {503, "application/json", to_line({{"status", "stopping"}}), {}};
}

HttpResponse InfoHandler::version() const {
  return json_response({{"version", context_.options.version},
                        {"engine", context_.backend.description()},
                        {"chat_template", context_.chat.name()}});
}

Json InfoHandler::model_json() const {
  return {{"id", context_.options.model_name},
          {"object", "model"},
          {"created", started_},
          {"owned_by", "laplace"},
          {"root", context_.options.model_root},
          {"parent", nullptr},
          {"max_model_len", nullptr}};  // a state of fixed size has no longest text
}

HttpResponse InfoHandler::models() const {
  return json_response({{"object", "list"}, {"data", Json::array({model_json()})}});
}

HttpResponse InfoHandler::model(std::string_view id) const {
  // Clients escape what stands in a name, "org/model" above all.
  if (without_escapes(id) == context_.options.model_name) return json_response(model_json());
  throw ApiError(404, "model", "model_not_found",
                 cat("the model ", quoted(id), " is not served here"));
}

void InfoHandler::tokenize(const std::shared_ptr<Exchange>& exchange, const std::string& tenant) {
  context_.post_request([this, exchange, ticket = context_.tickets.take(tenant)] {
    answer_errors(exchange, [&] {
      RequestFields fields(exchange->request().body);
      const auto prompt = fields.text("prompt");
      if (!prompt) fail_field("prompt", "prompt is missing; give a text");
      const bool special = fields.boolean("add_special_tokens").value_or(false);
      const bool texts = fields.boolean("return_token_strs").value_or(false);
      fields.ignore({"model"});
      fields.finish();
      std::vector<TokenId> ids;
      const TokenId end_of_text = context_.backend.model().end_of_text;
      if (special && end_of_text >= 0) ids.push_back(end_of_text);
      const std::vector<TokenId> more = context_.tokenizer.encode(*prompt);
      ids.insert(ids.end(), more.begin(), more.end());
      Json out = {{"count", ids.size()}, {"max_model_len", nullptr}, {"tokens", ids}};
      if (texts) {
        Json& strings = out["token_strs"] = Json::array();
        for (const TokenId id : ids) strings.push_back(token_text(context_.tokenizer, id));
      }
      exchange->respond(json_response(out));
    });
  });
}

void InfoHandler::detokenize(const std::shared_ptr<Exchange>& exchange, const std::string& tenant) {
  context_.post_request([this, exchange, ticket = context_.tickets.take(tenant)] {
    answer_errors(exchange, [&] {
      RequestFields fields(exchange->request().body);
      const auto tokens = fields.any("tokens");
      if (!tokens) fail_field("tokens", "tokens is missing; give a list of ids");
      fields.ignore({"model"});
      fields.finish();
      std::string text;
      size_t i = 0;
      for (const JsonElement token : array_of(*tokens, "tokens")) {
        const std::string param = cat("tokens[", i++, "]");
        text += context_.tokenizer.bytes_of(
            TokenId(integer_of(token, param, 0, context_.tokenizer.vocab_size() - 1)));
      }
      exchange->respond(json_response({{"prompt", text}}));
    });
  });
}

HttpResponse InfoHandler::metrics() const {
  const std::string labels =
      cat("model_name=\"", label_text(context_.options.model_name), "\",engine=\"0\"");
  std::string out;
  write_engine_metrics(out, labels);
  context_.metrics.write(out, labels);
  write_session_metrics(out, labels);
  write_gauge(out, "laplace:requests_active", "Requests from arrival to their end.", labels,
              double(context_.tickets.active()));
  write_gauge(out, "process_resident_memory_bytes", "Resident memory.", labels,
              double(resident_bytes()));
  write_gauge(out, "process_start_time_seconds", "Start, Unix time.", labels, double(started_));
  return {200, "text/plain; version=0.0.4; charset=utf-8", std::move(out), {}};
}

void InfoHandler::write_engine_metrics(std::string& out, const std::string& labels) const {
  const EngineStats stats = context_.backend.stats();
  const auto gauge = [&](std::string_view name, std::string_view help, double value) {
    write_gauge(out, name, help, labels, value);
  };
  const auto counter = [&](std::string_view name, std::string_view help, double value) {
    write_counter(out, name, help, labels, value);
  };
  const double used =
      stats.slots_total > 0 ? double(stats.slots_used) / double(stats.slots_total) : 0;
  gauge("vllm:num_requests_running", "Sequences in slots.", double(stats.running));
  gauge("vllm:num_requests_waiting", "Sequences that wait for a slot.",
        double(stats.waiting + stats.swapped));
  gauge("vllm:num_requests_swapped", "Sequences whose state is swapped out.",
        double(stats.swapped));
  gauge("vllm:gpu_cache_usage_perc", "Share of the slots in use, 0 to 1.", used);
  gauge("vllm:kv_cache_usage_perc", "Share of the slots in use, 0 to 1.", used);
  counter("vllm:num_preemptions_total", "States swapped out for others.", double(stats.swaps_out));
  gauge("laplace:state_slots", "Slots, one sequence's state each.", double(stats.slots_total));
  gauge("laplace:state_slots_used", "Slots in use.", double(stats.slots_used));
  gauge("laplace:state_bytes", "Bytes of one sequence's state, whatever its length.",
        double(context_.backend.bytes_per_sequence()));
  counter("laplace:swaps_in_total", "States swapped in.", double(stats.swaps_in));
  counter("laplace:steps_total", "Steps of the engine.", double(stats.steps));
  counter("laplace:step_seconds_total", "Time in steps.", stats.step_seconds);
  counter("laplace:step_decode_rows_total", "Decoding rows, over all steps.",
          double(stats.decode_rows));
  counter("laplace:step_prefill_rows_total", "Prompt rows, over all steps.",
          double(stats.prefill_rows));
  gauge("laplace:step_width", "Rows of the last step.",
        double(stats.last_decode_rows + stats.last_prefill_rows));
  const double rows = double(stats.decode_rows + stats.prefill_rows);
  gauge("laplace:prefill_share", "Prompt rows among all rows so far, 0 to 1.",
        rows > 0 ? double(stats.prefill_rows) / rows : 0);
  counter("laplace:engine_prompt_tokens_total", "Prompt tokens that were evaluated.",
          double(stats.prompt_tokens));
  counter("laplace:engine_generated_tokens_total", "Tokens that were generated.",
          double(stats.generated_tokens));
  counter("laplace:engine_errors_total", "Requests failed by an error of a step.",
          double(stats.failed));
}

void InfoHandler::write_session_metrics(std::string& out, const std::string& labels) const {
  const PrefixCacheStats prefixes = context_.prefixes.stats();
  const SessionStats sessions = context_.sessions.stats();
  const auto gauge = [&](std::string_view name, std::string_view help, int64_t value) {
    write_gauge(out, name, help, labels, double(value));
  };
  const auto counter = [&](std::string_view name, std::string_view help, int64_t value) {
    write_counter(out, name, help, labels, double(value));
  };
  counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up.", prefixes.queried_tokens);
  counter("vllm:prefix_cache_hits_total", "Prompt tokens found.", prefixes.hit_tokens);
  gauge("laplace:prefix_cache_bytes", "Memory of the prefix cache.", prefixes.bytes);
  gauge("laplace:prefix_cache_entries", "States in the prefix cache.", prefixes.entries);
  counter("laplace:session_hits_total", "Sessions continued from memory.", sessions.hits);
  counter("laplace:session_loads_total", "Sessions read from the store.", sessions.loads);
  counter("laplace:session_new_total", "Sessions begun.", sessions.misses);
  counter("laplace:session_refused_total", "States refused: damaged, or another model's.",
          sessions.refused);
  counter("laplace:session_saves_total", "States saved.", sessions.saves);
  counter("laplace:session_save_errors_total", "States that could not be saved.",
          sessions.save_errors);
  counter("laplace:session_evictions_total", "States dropped from memory.", sessions.evicted);
  gauge("laplace:session_memory_bytes", "Memory of sessions.", sessions.memory_bytes);
  gauge("laplace:sessions_in_use", "Sessions that a request holds.", sessions.in_use);
}

}  // namespace laplace
