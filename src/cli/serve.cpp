// serve: OpenAI's API, sessions and the web page over the serving engine.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "base/threads.h"
#include "cli/checks.h"
#include "cli/model_options.h"
#include "cli/verbs.h"
#include "serve/engine/engine.h"
#include "serve/engine/model_fingerprint.h"
#include "serve/http/run_server.h"
#include "serve/sessions/session_manager.h"

namespace laplace::cli {

namespace {

constexpr const char* kKeyVariable = "LAPLACE_API_KEY";

struct ServeOptions {
  std::string model;
  std::string served_name;
  std::string dtype = "auto";
  EngineOptions engine;
  ServerOptions server;
  SessionLimits sessions;
  std::string state_store;  // a directory or redis://
  std::vector<std::string> key_files;
  std::string chat_template;
  // In seconds, as people give them.
  double header_timeout = 10, body_timeout = 60, idle_timeout = 75, write_timeout = 30;
  double drain_time = 30, session_wait = 8, max_time = 0, heartbeat = 10;
};

std::chrono::milliseconds milliseconds(double seconds) {
  constexpr double kMost = 1e9;  // 30 years: clocks count nanoseconds in 64 bits
  return std::chrono::milliseconds(int64_t(std::min(seconds, kMost) * 1000));
}

void load_keys(const ServeOptions& options, KeyRing& keys) {
  for (const std::string& file : options.key_files) keys.add_file(file);
  const char* const given = std::getenv(kKeyVariable);
  if (given == nullptr) return;
  std::string_view rest = given;
  while (!rest.empty()) {
    const size_t comma = std::min(rest.find(','), rest.size());
    keys.add(rest.substr(0, comma), kKeyVariable);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  ::unsetenv(kKeyVariable);  // not for children to see
}

// The option, else the model directory's own choice, else plain.
std::string chat_template_of(const ServeOptions& options, const Path& directory) {
  if (!options.chat_template.empty()) return options.chat_template;
  const Path file = directory / "generation_config.json";
  if (!std::filesystem::exists(file)) return "plain";
  const Json json = load_json(file);
  if (!json.is_object() || !json.contains("chat_template")) return "plain";
  const Json& name = json["chat_template"];
  if (!name.is_string() || (name != "plain" && name != "chatml")) {
    fail_input(file.string(), ": the field \"chat_template\" must be \"plain\" or \"chatml\"");
  }
  return name.get<std::string>();
}

void resolve(ServeOptions& options, const Path& directory) {
  HttpLimits& http = options.server.http;
  http.header_timeout = milliseconds(options.header_timeout);
  http.body_timeout = milliseconds(options.body_timeout);
  http.idle_timeout = milliseconds(options.idle_timeout);
  http.write_timeout = milliseconds(options.write_timeout);
  options.server.drain_time = milliseconds(options.drain_time);
  ServiceOptions& service = options.server.service;
  service.session_wait = milliseconds(options.session_wait);
  service.max_time = milliseconds(options.max_time);
  service.heartbeat = milliseconds(options.heartbeat);
  service.version = LAPLACE_VERSION;
  service.model_root = directory.string();
  const Path given = Path(options.model).lexically_normal();
  const Path name = given.has_filename() ? given.filename() : given.parent_path().filename();
  service.model_name = options.served_name.empty() ? name.string() : options.served_name;
  service.chat_template = chat_template_of(options, directory);
  if (options.state_store.empty()) options.state_store = default_session_directory().string();
}

void run_serve(ServeOptions& options) {
  load_keys(options, options.server.service.keys);
  check_exposure(options.server);
  options.engine.dtype = parse_engine_dtype(options.dtype);
  const OpenModel model = open_model({.model = options.model});
  model.need_tokenizer();
  resolve(options, model.directory);
  StateShape shape;
  shape.fingerprint = model_fingerprint(model.directory, model.config);
  shape.slot_floats = model.config.state_bytes() / int64_t(sizeof(float));
  shape.vocab_size = model.config.vocab_size;
  auto store = open_state_store(options.state_store);
  install_stop_signals();
  EngineBackend backend(Engine::open(
      model.directory, {model.config, model.tokenizer, model.end_of_text}, options.engine));
  SessionManager sessions(std::move(store), shape, options.sessions);
  run_server(backend, sessions, options.server, [&](const std::string& address) {
    log_info("serving ", options.server.service.model_name, " (", backend.description(), ") at ",
             address, ", sessions in ", sessions.describe());
    print_now(address + "\n");
  });
}

void add_engine_options(CLI::App& app, ServeOptions& options) {
  const std::string group = "Engine";
  EngineOptions& engine = options.engine;
  app.add_option("--device", engine.device, "cpu, or a device of LibTorch")
      ->capture_default_str()
      ->group(group);
  app.add_option("--dtype", options.dtype, "float32, bfloat16, int8, int4 or auto")
      ->capture_default_str()
      ->group(group);
  app.add_option("--threads", engine.threads, "Threads of all replicas together, 0 for all cores")
      ->check(CLI::Range(0, kMostThreads))
      ->capture_default_str()
      ->group(group);
  app.add_option("--replicas", engine.replicas, "Engines in this process")
      ->check(CLI::Range(1, kMostThreads))
      ->capture_default_str()
      ->group(group);
  app.add_option("--slots", engine.slots, "Sequences at once, 0 for as many as memory holds")
      ->check(not_negative())
      ->capture_default_str()
      ->group(group);
  app.add_option("--max-slots", engine.max_slots, "At most so many with --slots 0")
      ->check(above_zero())
      ->capture_default_str()
      ->group(group);
  app.add_option("--prefill-budget", engine.prefill_budget, "Prompt tokens a step")
      ->check(above_zero())
      ->capture_default_str()
      ->group(group);
  app.add_option("--prefill-stretch", engine.prefill_stretch,
                 "Beside sequences that generate, a step with prompts takes at most so many times "
                 "as long as one without; 0 for no bound")
      ->check(not_negative())
      ->capture_default_str()
      ->group(group);
  app.add_option("--memory-share", engine.memory_share,
                 "Of the available memory that weights and slots may take")
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str()
      ->group(group);
  app.add_option("--max-waiting", engine.max_waiting,
                 "Sequences that wait for a slot; more are answered 429")
      ->check(not_negative())
      ->capture_default_str()
      ->group(group);
  app.add_flag("--poison", engine.poison, "Fill freed slots with NaN, for tests")->group(group);
}

void add_access_options(CLI::App& app, ServeOptions& options) {
  const std::string group = "Access";
  ServerOptions& server = options.server;
  app.add_option("--host", server.host, "Address to listen on")
      ->capture_default_str()
      ->group(group);
  app.add_option("--port", server.port, "Port, 0 picks one")->capture_default_str()->group(group);
  app.add_option("--api-key-file", options.key_files,
                 "API keys, one a line; LAPLACE_API_KEY adds to them (separated by commas)")
      ->allow_extra_args(false)
      ->type_name("FILE")
      ->group(group);
  app.add_flag("--insecure", server.insecure, "Serve a network without an API key")->group(group);
  app.add_option("--cors-origin", server.service.cors_origins,
                 "Let pages of this origin use the API; may be given several times, * is any")
      ->allow_extra_args(false)
      ->group(group);
  app.add_option("--allowed-host", server.service.allowed_hosts,
                 "Answer only requests to this host name; may be given several times. Without a "
                 "key, on a loopback address: that address and localhost")
      ->allow_extra_args(false)
      ->group(group);
  app.add_option("--access-log", server.access_log,
                 "A line of JSON for each request: a file, - for standard error, or off")
      ->capture_default_str()
      ->group(group);
  app.add_option("--drain-time", options.drain_time,
                 "Seconds that running requests have to end after SIGTERM")
      ->check(not_negative())
      ->capture_default_str()
      ->group(group);
}

void add_session_options(CLI::App& app, ServeOptions& options) {
  const std::string group = "Sessions";
  SessionLimits& sessions = options.sessions;
  CLI::Option* const directory =
      app.add_option("--state-dir", options.state_store,
                     "Where sessions are kept; $XDG_STATE_HOME/laplace/sessions if left out")
          ->type_name("DIR")
          ->group(group);
  app.add_option(
         "--state-store", options.state_store,
         "The same, or redis://[[USER]:PASSWORD@]HOST[:PORT][/DB], shared by several servers")
      ->excludes(directory)
      ->type_name("PLACE")
      ->group(group);
  app.add_option("--session-memory", sessions.memory_bytes, "Bytes of states kept in memory")
      ->transform(CLI::AsSizeValue(false))
      ->check(above_zero())
      ->capture_default_str()
      ->group(group);
  app.add_option("--session-quota", sessions.stored_bytes, "Bytes of the saved sessions of a key")
      ->transform(CLI::AsSizeValue(false))
      ->check(above_zero())
      ->capture_default_str()
      ->group(group);
  app.add_option("--max-sessions", sessions.stored_sessions, "Saved sessions of a key")
      ->check(above_zero())
      ->capture_default_str()
      ->group(group);
  app.add_option("--session-wait", options.session_wait,
                 "Seconds that a request waits for a session in use, then 409")
      ->check(not_negative())
      ->capture_default_str()
      ->group(group);
  app.add_option("--prefix-cache", options.server.service.prefix_cache_bytes,
                 "Bytes of states of prompts kept in memory, 0 for none")
      ->transform(CLI::AsSizeValue(false))
      ->check(not_negative())
      ->capture_default_str()
      ->group(group);
}

void add_request_limits(CLI::App& app, ServeOptions& options) {
  const std::string group = "Limits of a request";
  ApiLimits& limits = options.server.service.limits;
  const auto add = [&](const std::string& name, int64_t& value, const std::string& help) {
    app.add_option(name, value, help)->check(above_zero())->capture_default_str()->group(group);
  };
  add("--max-tokens-limit", limits.max_tokens, "Largest max_tokens");
  add("--default-max-tokens", limits.default_tokens, "max_tokens of completions if left out");
  add("--default-chat-max-tokens", limits.default_chat_tokens, "max_tokens of chats if left out");
  add("--max-n", limits.max_n, "Largest n");
  add("--max-prompts", limits.max_prompts, "Prompts of a request");
  add("--max-choices", limits.max_choices, "Prompts times n");
  add("--max-echo-logprobs", limits.max_echo_log_probs,
      "Log-probabilities of echoed prompts: tokens times (logprobs + 1) times n");
  add("--max-stops", limits.max_stops, "Stop strings");
  add("--max-stop-bytes", limits.max_stop_bytes, "Bytes of a stop string");
  add("--max-token-list", limits.max_token_list,
      "Entries of logit_bias, stop_token_ids, allowed_token_ids");
  add("--max-messages", limits.max_messages, "Messages of a chat");
  add("--max-concurrent-per-key", options.server.service.max_concurrent_per_key,
      "Requests of a key at once; more are answered 429");
  add("--max-pending", options.server.service.max_pending,
      "Requests that wait to be read; more are answered 429");
  app.add_option("--heartbeat", options.heartbeat,
                 "Seconds until a stream that has nothing to say sends a comment, 0 for never")
      ->check(not_negative())
      ->capture_default_str()
      ->group(group);
  app.add_option("--max-request-time", options.max_time,
                 "Seconds of a request, 0 for no bound; then 504")
      ->check(not_negative())
      ->capture_default_str()
      ->group(group);
}

void add_http_limits(CLI::App& app, ServeOptions& options) {
  const std::string group = "Limits of a connection";
  HttpLimits& http = options.server.http;
  const auto add_bytes = [&](const std::string& name, int64_t& value, const std::string& help) {
    app.add_option(name, value, help)
        ->transform(CLI::AsSizeValue(false))
        ->check(above_zero())
        ->capture_default_str()
        ->group(group);
  };
  const auto add_seconds = [&](const std::string& name, double& value, const std::string& help) {
    app.add_option(name, value, help)->check(above_zero())->capture_default_str()->group(group);
  };
  app.add_option("--max-connections", http.max_connections, "More are answered 503")
      ->check(above_zero())
      ->capture_default_str()
      ->group(group);
  add_bytes("--max-header-bytes", http.max_header_bytes, "Of a request's header; then 431");
  add_bytes("--max-target-bytes", http.max_target_bytes, "Of a request's address; then 414");
  add_bytes("--max-body-bytes", http.max_body_bytes, "Of a request's body; then 413");
  add_bytes("--max-body-bytes-total", http.max_body_bytes_total,
            "Of the bodies being read, all together; then 429");
  add_bytes("--max-output-bytes", http.max_output_bytes,
            "Of a stream that its client leaves unread; then it loses the connection");
  add_seconds("--header-timeout", options.header_timeout, "Seconds for a request's header");
  add_seconds("--body-timeout", options.body_timeout, "Seconds for a request's body");
  add_seconds("--idle-timeout", options.idle_timeout, "Seconds between two requests");
  add_seconds("--write-timeout", options.write_timeout,
              "Seconds that a client may take nothing of what is sent");
  app.add_option("--io-threads", http.threads, "Threads that read and write connections")
      ->check(CLI::Range(1, kMostThreads))
      ->capture_default_str()
      ->group(group);
  app.add_option("--workers", options.server.service.workers,
                 "Threads that parse, tokenize and load sessions")
      ->check(CLI::Range(1, kMostThreads))
      ->capture_default_str()
      ->group(group);
}

}  // namespace

void add_serve(CLI::App& program) {
  CLI::App* const app =
      program.add_subcommand("serve", "Serve a model: OpenAI's API, sessions, a web page");
  const auto options = std::make_shared<ServeOptions>();
  app->add_option("--model", options->model, "Model directory, or a run directory of laplace train")
      ->required()
      ->type_name("DIR");
  app->add_option("--served-model-name", options->served_name,
                  "The name that requests give; the directory's if left out");
  app->add_option("--chat-template", options->chat_template,
                  "plain or chatml; if left out, what generation_config.json says, else plain")
      ->check(CLI::IsMember({"plain", "chatml"}));
  add_access_options(*app, *options);
  add_session_options(*app, *options);
  add_engine_options(*app, *options);
  add_request_limits(*app, *options);
  add_http_limits(*app, *options);
  app->footer(
      "Example:\n  laplace serve --model run\n"
      "  curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\\n"
      "    -d '{\"prompt\": \"Once\", \"max_tokens\": 20}'");
  app->callback([options] { run_serve(*options); });
}

}  // namespace laplace::cli
