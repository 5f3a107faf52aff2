// generate: goes on from a prompt, and streams the text.
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/process.h"
#include "base/progress.h"
#include "cli/model_options.h"
#include "cli/run_request.h"
#include "cli/verbs.h"

namespace laplace::cli {

namespace {

struct GenerateOptions {
  ModelOptions model;
  SamplingOptions sampling;
  std::string prompt;
  std::optional<std::string> prompt_file;
  bool echo = false;
  bool json = false;
};

struct Outcome {
  Finish finish;
  double prompt_seconds = 0;  // until the first token was there
  double seconds = 0;         // from the first token to the last
  std::string text;           // with --json only
  std::vector<TokenId> ids;   // with --json only

  // Tokens a second behind the first; nothing where there is no second one.
  std::optional<double> rate() const {
    if (finish.generated_tokens < 2 || seconds <= 0) return std::nullopt;
    return double(finish.generated_tokens - 1) / seconds;
  }
  std::string_view reason() const {
    return finish.reason == FinishReason::kCancelled ? "interrupted"
                                                     : finish_reason_name(finish.reason);
  }
};

// A document starts with the end-of-text token, as in the training data.
std::vector<TokenId> prompt_ids(const OpenModel& model, const std::string& prompt) {
  std::vector<TokenId> ids = model.need_tokenizer().encode(prompt);
  if (model.end_of_text >= 0) ids.insert(ids.begin(), model.end_of_text);
  if (ids.empty()) {
    fail_input("the prompt is empty, and the tokenizer of ", model.directory.string(),
               " has no <|endoftext|> to start from; give a --prompt");
  }
  return ids;
}

Outcome generate_text(Engine& engine, Request request, bool json) {
  Outcome out;
  const Stopwatch watch;
  const auto take_text = [&](std::string_view text) {
    if (!text.empty()) json ? void(out.text += text) : print_now(text);
  };
  RunEvents events;
  events.interrupted = stop_requested;
  events.token = [&](const TokenResult& token, std::string_view text) {
    if (json) out.ids.push_back(token.id);
    take_text(text);
  };
  const RunResult result = run_request(engine, std::move(request), events);
  out.finish = result.finish;
  take_text(out.finish.text);
  out.prompt_seconds = result.first_token < 0 ? watch.seconds() : result.first_token;
  out.seconds = result.last_token - result.first_token;
  return out;
}

void print_json(const Outcome& out, const std::string& prompt, uint64_t seed, bool echo) {
  const Json object = {{"text", echo ? prompt + out.text : out.text},
                       {"ids", out.ids},
                       {"finish_reason", out.reason()},
                       {"prompt_tokens", out.finish.prompt_tokens},
                       {"generated_tokens", out.finish.generated_tokens},
                       {"seed", seed},
                       {"prompt_seconds", out.prompt_seconds},
                       {"seconds", out.seconds},
                       {"tokens_per_second", out.rate() ? Json(*out.rate()) : Json()}};
  print_now(to_text(object));
}

void run_generate(const GenerateOptions& options) {
  Request request = options.sampling.resolve();
  const std::string prompt =
      options.prompt_file ? read_input(*options.prompt_file) : options.prompt;
  install_stop_signals();
  const OpenModel model = open_model(options.model);
  request.prompt = prompt_ids(model, prompt);
  const auto engine = open_engine(options.model, model);
  if (options.echo && !options.json) print_now(prompt);
  const uint64_t seed = request.sampling.seed;
  const Outcome out = generate_text(*engine, std::move(request), options.json);
  if (options.json) {
    print_json(out, prompt, seed, options.echo);
  } else if (::isatty(STDOUT_FILENO) != 0) {
    print_now("\n");  // so that the shell's prompt has its own line; a pipe gets the text alone
  }
  log_info(with_commas(out.finish.prompt_tokens), " tokens of prompt in ",
           human_duration(out.prompt_seconds), ", ", with_commas(out.finish.generated_tokens),
           " generated in ", human_duration(out.seconds),
           out.rate() ? strf(": %.1f tokens/s", *out.rate()) : "", " (", out.reason(), ")");
}

}  // namespace

void add_generate(CLI::App& program) {
  CLI::App* const app =
      program.add_subcommand("generate", "Go on from a prompt, streaming the text");
  const auto options = std::make_shared<GenerateOptions>();
  Request& generation = options->sampling.request;
  add_model_options(*app, options->model);
  CLI::Option* const prompt = app->add_option(
      "--prompt", options->prompt, "The beginning of the text; if left out, a new document begins");
  app->add_option("--prompt-file", options->prompt_file,
                  "Read it from a file, - for standard input")
      ->excludes(prompt)
      ->type_name("FILE");
  app->add_option("--max-tokens", generation.max_tokens, "Generate at most this many tokens")
      ->capture_default_str();
  app->add_option("--min-tokens", generation.min_tokens, "Do not end the document before")
      ->capture_default_str();
  add_sampling_options(*app, options->sampling);
  app->add_flag("--ignore-eos", generation.ignore_end_of_text,
                "Go on into another document where one ends");
  app->add_flag("--echo", options->echo, "Print the prompt first");
  app->add_flag("--json", options->json, "Print one JSON object at the end instead of streaming");
  app->footer(
      "Ctrl-C stops the generation, a second one the program.\n"
      "Example:\n  laplace generate --model run --prompt 'ROMEO:' --max-tokens 200 --seed 1");
  app->callback([options] { run_generate(*options); });
}

}  // namespace laplace::cli
