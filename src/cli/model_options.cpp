// See model_options.h.
#include "cli/model_options.h"

#include <cstdio>
#include <random>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/threads.h"
#include "cli/checks.h"
#include "model/model_directory.h"
#include "serve/engine/check_request.h"
#include "serve/engine/text_stream.h"

namespace laplace::cli {

namespace {

std::optional<Tokenizer> open_tokenizer(const Path& directory, const ModelConfig& config) {
  if (!std::filesystem::exists(directory / "tokenizer.json")) return std::nullopt;
  Tokenizer tokenizer = Tokenizer::open(directory);
  if (tokenizer.vocab_size() > config.vocab_size) {
    fail_input((directory / "tokenizer.json").string(), " has ", tokenizer.vocab_size(),
               " tokens, more than the model's vocab_size ", config.vocab_size,
               "; put the tokenizer there that the model was trained with");
  }
  return tokenizer;
}

}  // namespace

void add_model_options(CLI::App& app, ModelOptions& options) {
  app.add_option("--model", options.model, "Model directory, or a run directory of laplace train")
      ->required()
      ->type_name("DIR");
  app.add_option("--device", options.device, "A device of LibTorch: cpu, cuda, cuda:1, ...")
      ->capture_default_str();
  app.add_option(
         "--dtype", options.dtype,
         "What matrix products run in: float32, bfloat16, int8, int4, or auto (bfloat16 where the "
         "machine has it natively, else float32)")
      ->capture_default_str();
  app.add_option("--threads", options.threads, "Threads, 0 for all cores")
      ->check(CLI::Range(0, kMostThreads))
      ->capture_default_str();
}

const Tokenizer& OpenModel::need_tokenizer() const {
  if (!tokenizer) {
    fail_input(directory.string(),
               " has no tokenizer.json; put the tokenizer there that the model ",
               "was trained with");
  }
  return *tokenizer;
}

OpenModel open_model(const ModelOptions& options) {
  const Path directory = open_model_directory(options.model);
  const ModelConfig config = ModelConfig::load(directory);
  std::optional<Tokenizer> tokenizer = open_tokenizer(directory, config);
  const TokenId own = tokenizer ? tokenizer->end_of_text() : -1;
  return {directory, config, std::move(tokenizer), own >= 0 ? own : TokenId(config.eos_token_id)};
}

std::unique_ptr<Engine> open_engine(const ModelOptions& options, const OpenModel& model) {
  const Stopwatch watch;
  EngineOptions engine_options;
  engine_options.device = options.device;
  engine_options.dtype = parse_engine_dtype(options.dtype);
  engine_options.threads = options.threads;
  engine_options.slots = 1;
  engine_options.quiet = true;
  auto engine = Engine::open(model.directory, {model.config, model.tokenizer, model.end_of_text},
                             engine_options);
  log_debug("opened ", model.directory.string(), " (", with_commas(model.config.num_parameters()),
            " parameters, ", engine->description(), ") in ", human_duration(watch.seconds()));
  return engine;
}

void add_sampling_options(CLI::App& app, SamplingOptions& options) {
  SamplingParams& sampling = options.request.sampling;
  sampling.temperature = 0.8;
  app.add_option("--temperature", sampling.temperature, "Below 1 sharpens, 0 takes the likeliest")
      ->capture_default_str();
  app.add_option("--top-k", sampling.top_k, "Only the k likeliest tokens, 0 for all")
      ->capture_default_str();
  app.add_option("--top-p", sampling.top_p, "Only the likeliest tokens that sum to this share")
      ->capture_default_str();
  app.add_option("--min-p", sampling.min_p,
                 "Only tokens with at least this share of the largest probability")
      ->capture_default_str();
  app.add_option("--repetition-penalty", sampling.repetition_penalty,
                 "Above 1 makes tokens of the prompt and the output unlikelier")
      ->capture_default_str();
  app.add_option("--presence-penalty", sampling.presence_penalty,
                 "Taken from the logits of tokens of the output")
      ->capture_default_str();
  app.add_option("--frequency-penalty", sampling.frequency_penalty,
                 "The same, for every time a token occurs in the output")
      ->capture_default_str();
  app.add_option("--seed", options.seed,
                 "Equal seeds give equal text; a new one each run if left out")
      ->check(whole_64_bits());
  app.add_option("--stop", options.request.stops,
                 "End before this text; may be given several times")
      ->allow_extra_args(false)  // one for each --stop
      ->type_name("TEXT");
}

uint64_t new_seed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

Request SamplingOptions::resolve() const {
  Request out = request;
  out.sampling.seed = seed ? *seed : new_seed();
  check_numbers(out);
  StopFilter{out.stops};
  log_debug("seed ", out.sampling.seed);
  return out;
}

Path tokenizer_place(const Path& path) {
  return std::filesystem::is_directory(path / "checkpoints") ? open_model_directory(path) : path;
}

std::string read_input(const std::string& name) {
  std::string text = name == "-" ? read_standard_input() : read_file(name);
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);  // as in the texts of `data prepare`
  return text;
}

void print_now(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    fail_errno("cannot write to standard output");
  }
}

}  // namespace laplace::cli
