// generate: goes on from a prompt, and streams the text.
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/process.h"
#include "base/progress.h"
#include "cli/model_options.h"
#include "cli/verbs.h"
#include "serve/engine/generator.h"

namespace laplace::cli {

namespace {

struct GenerateOptions {
  ModelOptions model;
  SamplingOptions sampling;
  std::string prompt;
  std::string prompt_file;
  bool echo = false;
  bool json = false;
};

struct Outcome {
  GenerationResult result;
  int64_t prompt_tokens = 0;
  double prompt_seconds = 0;
  double seconds = 0;        // of the generation
  std::string text;          // with --json only
  std::vector<TokenId> ids;  // with --json only

  double rate() const { return seconds > 0 ? double(result.tokens) / seconds : 0; }
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

Outcome generate_text(const OpenModel& model, const std::string& prompt,
                      const GenerationOptions& options, bool json) {
  Outcome out;
  const std::vector<TokenId> ids = prompt_ids(model, prompt);
  Generator generator(model.decoder, model.need_tokenizer().vocab_size());
  Stopwatch watch;
  const bool whole = generator.prefill(ids, stop_requested);
  out.prompt_tokens = generator.position();
  out.prompt_seconds = watch.seconds();
  watch.restart();
  GenerationSink sink;
  sink.interrupted = stop_requested;
  sink.text = [&](std::string_view text) { json ? void(out.text += text) : print_now(text); };
  if (json) sink.token = [&](TokenId id) { out.ids.push_back(id); };
  if (whole) {
    out.result = generate(generator, model.need_tokenizer(), model.end_of_text, options, sink);
  } else {
    out.result.reason = GenerationEnd::kInterrupted;
  }
  out.seconds = watch.seconds();
  return out;
}

void print_json(const Outcome& out, const std::string& prompt, uint64_t seed, bool echo) {
  const Json object = {{"text", echo ? prompt + out.text : out.text},
                       {"ids", out.ids},
                       {"finish_reason", finish_reason_name(out.result.reason)},
                       {"prompt_tokens", out.prompt_tokens},
                       {"generated_tokens", out.result.tokens},
                       {"seed", seed},
                       {"prompt_seconds", out.prompt_seconds},
                       {"seconds", out.seconds},
                       {"tokens_per_second", out.rate()}};
  print_now(to_text(object));
}

void run_generate(const GenerateOptions& options) {
  const GenerationOptions generation = options.sampling.resolve();
  const std::string prompt =
      options.prompt_file.empty() ? options.prompt : read_input(options.prompt_file);
  install_stop_signals();
  const OpenModel model = open_model(options.model);
  if (options.echo && !options.json) print_now(prompt);
  const Outcome out = generate_text(model, prompt, generation, options.json);
  if (options.json) {
    print_json(out, prompt, generation.sampling.seed, options.echo);
  } else if (::isatty(STDOUT_FILENO) != 0) {
    print_now("\n");  // so that the shell's prompt has its own line; a pipe gets the text alone
  }
  log_info(with_commas(out.prompt_tokens), " tokens of prompt in ",
           human_duration(out.prompt_seconds), ", ", with_commas(out.result.tokens),
           " generated in ", human_duration(out.seconds), ": ", strf("%.1f", out.rate()),
           " tokens/s (", finish_reason_name(out.result.reason), ")");
}

}  // namespace

void add_generate(CLI::App& program) {
  CLI::App* const app =
      program.add_subcommand("generate", "Go on from a prompt, streaming the text");
  const auto options = std::make_shared<GenerateOptions>();
  GenerationOptions& generation = options->sampling.generation;
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
