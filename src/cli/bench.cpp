// bench: how fast the engine is on this machine, beside what the machine can do at best (training
// and operators: bench_train.cpp). Weights are random and made in place, so a configuration is all
// it needs.
#include <memory>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/threads.h"
#include "cli/bench_engine.h"
#include "cli/checks.h"
#include "cli/model_options.h"
#include "cli/verbs.h"

namespace laplace::cli {

namespace {

void run_decode(const BenchOptions& options) {
  if (options.load.output_tokens < 2) {
    fail_input("--output is ", options.load.output_tokens,
               ", but must be at least 2: time passes between tokens");
  }
  if (!options.contexts.empty()) return bench_contexts(options);
  const Bench bench = open_bench(options, options.batch);
  Load load = options.load;
  load.requests = options.batch;
  Load warm = load;
  warm.output_tokens = 4;
  run_load(*bench.engine, warm);
  const MachineLimits limits = measure_limits(*bench.model, options.batch, bench.threads);
  const LoadResult result = run_load(*bench.engine, load);
  const double rate = double(result.steady_tokens) / result.steady_seconds;
  const StepLimit step =
      step_limit(*bench.model, limits, options.batch, options.batch, options.batch);
  const double share = rate * step.seconds() / double(options.batch);
  const double p50 = percentile(result.inter_token, 0.5),
               p99 = percentile(result.inter_token, 0.99);
  const int64_t growth = result.resident_later - result.resident_early;
  if (options.json) {
    print_now(to_text(Json{{"engine", bench.engine->description()},
                           {"batch", options.batch},
                           {"tokens_per_second", rate},
                           {"share_of_limit", share},
                           {"inter_token_p50", p50},
                           {"inter_token_p99", p99},
                           {"weight_bytes", bench.model->weight_bytes()},
                           {"state_bytes", bench.model->config().state_bytes()},
                           {"pack_seconds", bench.pack_seconds},
                           {"resident_bytes", result.resident_early},
                           {"resident_growth", growth},
                           {"limits", limits_json(limits, step)}}));
    return;
  }
  print_now(strf("decode, %lld sequences, %s: %.1f tokens/s, %.1f %% of the limit\n"
                 "inter-token p50 %.2f ms, p99 %.2f ms; resident memory grew by %s in the last "
                 "nine tenths of the tokens\n",
                 static_cast<long long>(options.batch), bench.engine->description().c_str(), rate,
                 share * 100, p50 * 1e3, p99 * 1e3, human_bytes(double(growth)).c_str()) +
            limits_text(limits, step));
}

void run_prefill(const BenchOptions& options) {
  if (options.beside > 0) return bench_long_prompt(options);
  const Bench bench = open_bench(options, options.batch);
  Load load = options.load;
  load.requests = options.batch;
  load.output_tokens = 1;
  Load warm = load;
  warm.prompt_tokens = std::min<int64_t>(load.prompt_tokens, 64);
  run_load(*bench.engine, warm);
  const int64_t rows = std::min(options.budget, load.prompt_tokens);
  const MachineLimits limits = measure_limits(*bench.model, rows, bench.threads);
  const LoadResult result = run_load(*bench.engine, load);
  const double rate = double(load.prompt_tokens * options.batch) / result.seconds;
  const StepLimit step = step_limit(*bench.model, limits, rows, 1, 0);
  const double share = rate * step.seconds() / double(rows);
  if (options.json) {
    print_now(to_text(Json{{"engine", bench.engine->description()},
                           {"prompt_tokens", load.prompt_tokens},
                           {"prompts", options.batch},
                           {"tokens_per_second", rate},
                           {"share_of_limit", share},
                           {"first_token_p50", percentile(result.first_token, 0.5)},
                           {"limits", limits_json(limits, step)}}));
    return;
  }
  print_now(strf("prefill, %lld prompts of %lld tokens, %s: %.1f tokens/s, %.1f %% of the limit\n",
                 static_cast<long long>(options.batch), static_cast<long long>(load.prompt_tokens),
                 bench.engine->description().c_str(), rate, share * 100) +
            limits_text(limits, step));
}

void add_common(CLI::App& app, BenchOptions& options) {
  app.add_option("--config", options.config, "A model's config.json; its weights will be random")
      ->required()
      ->type_name("FILE");
  app.add_option("--dtype", options.dtype, "float32, bfloat16, int8, int4, or auto")
      ->capture_default_str();
  app.add_option("--threads", options.threads, "Threads, 0 for all cores")
      ->check(CLI::Range(0, kMostThreads))
      ->capture_default_str();
  app.add_option("--replicas", options.replicas, "Engines in this process")
      ->check(CLI::Range(1, kMostThreads))
      ->capture_default_str();
  app.add_option("--prefill-budget", options.budget, "Prompt tokens in a step")
      ->check(above_zero())
      ->capture_default_str();
  app.add_option("--prefill-stretch", options.stretch,
                 "Beside decoding sequences, how long a step with prompts may take, in steps "
                 "without; 0 for no bound")
      ->check(not_negative())
      ->capture_default_str();
  app.add_option("--prompt", options.load.prompt_tokens, "Tokens of each prompt")
      ->check(
          CLI::Range(int64_t{1}, int64_t{100'000'000}))  // they are made before the first is read
      ->capture_default_str();
  app.add_option("--output", options.load.output_tokens, "Tokens generated for each prompt")
      ->check(above_zero())
      ->capture_default_str();
  app.add_option("--temperature", options.load.temperature, "0 takes the likeliest token")
      ->check(not_negative())
      ->capture_default_str();
  app.add_option("--seed", options.load.seed, "Of prompts, sampling and arrivals")
      ->check(whole_64_bits())
      ->capture_default_str();
  app.add_flag("--json", options.json, "Print one JSON object");
}

struct Verb {
  CLI::App* app;
  BenchOptions& options;
};

Verb add_verb(CLI::App& bench, const std::string& name, const char* what,
              void (*run)(const BenchOptions&), const Load& defaults, const char* example) {
  CLI::App* const app = bench.add_subcommand(name, what);
  const auto options = std::make_shared<BenchOptions>();
  options->load = defaults;
  add_common(*app, *options);
  app->footer(
      cat("Example:\n  laplace bench ", name, " --config configs/laplace-160m.json ", example));
  app->callback([options, run] { run(*options); });
  return {app, *options};
}

}  // namespace

void add_bench(CLI::App& program) {
  CLI::App* const bench = program.add_subcommand(
      "bench", "Measure serving and training with random weights, beside the machine's limits");
  bench->require_subcommand(1);
  const Verb decode =
      add_verb(*bench, "decode", "Sequences that generate together", run_decode, {}, "--batch 32");
  decode.app->add_option("--batch", decode.options.batch, "Sequences")
      ->check(above_zero())
      ->capture_default_str();
  decode.app
      ->add_option("--context", decode.options.contexts,
                   "Instead: what a token costs after so many others, say 2048,8192, in turns")
      ->delimiter(',')
      ->type_name("TOKENS");
  decode.app->add_option("--pairs", decode.options.pairs, "With --context: turns")
      ->check(above_zero())
      ->capture_default_str();
  const Verb prefill = add_verb(*bench, "prefill", "Reading prompts", run_prefill,
                                {.prompt_tokens = 2048}, "--prompt 8192");
  prefill.app->add_option("--batch", prefill.options.batch, "Prompts at a time")
      ->check(above_zero())
      ->capture_default_str();
  prefill.app
      ->add_option("--beside", prefill.options.beside,
                   "Instead: one prompt beside so many sequences that decode")
      ->check(not_negative())
      ->capture_default_str();
  const Verb serve =
      add_verb(*bench, "serve", "Requests that come at random times", bench_arrivals,
               {.requests = 64, .prompt_tokens = 128, .output_tokens = 128, .rate = 4}, "--rate 8");
  serve.app->add_option("--requests", serve.options.load.requests, "How many")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000}))
      ->capture_default_str();
  serve.app->add_option("--rate", serve.options.load.rate, "Requests a second, 0 for all at once")
      ->check(not_negative())
      ->capture_default_str();
  serve.app
      ->add_option("--burstiness", serve.options.load.burstiness,
                   "Shape of the gamma distribution between arrivals; 1: Poisson, below: bursts")
      ->check(above_zero())
      ->capture_default_str();
  serve.app
      ->add_option("--slots", serve.options.slots, "Sequences at a time, 0 for what memory holds")
      ->check(not_negative())
      ->capture_default_str();
  serve.app
      ->add_option("--fixed-rounds", serve.options.fixed_rounds,
                   "Also so many rounds of the same requests in fixed batches of the mean width")
      ->check(not_negative())
      ->capture_default_str();
  add_bench_open(*bench);
  add_bench_train(*bench);
  bench->footer(
      "Example:\n  laplace bench decode --config configs/laplace-160m.json --batch 32\n"
      "  laplace bench serve --config configs/laplace-160m.json --rate 8 --requests 100\n"
      "  laplace bench open --config configs/laplace-3b.json --dtype int8\n"
      "  laplace bench train --config configs/demo.json --seq-length 256 --micro-batch 8");
}

}  // namespace laplace::cli
