// bench: how fast the engine is on this machine, beside what the machine can do at best (training
// and operators: bench_train.cpp). Weights are random and made in place, so a configuration is all
// it needs.
#include <memory>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/threads.h"
#include "cli/bench_limits.h"
#include "cli/bench_load.h"
#include "cli/model_options.h"
#include "cli/verbs.h"
#include "serve/engine/cpu/cpu_executor.h"
#include "serve/engine/open_engine.h"

namespace laplace::cli {

namespace {

struct BenchOptions {
  std::string config;
  std::string dtype = "auto";
  int threads = 0;
  int replicas = 1;
  int64_t slots = 0;
  int64_t budget = 512;
  int64_t batch = 1;
  Load load;
  bool json = false;
};

// A model with its engine, and what the measurement needs to know of it.
struct Bench {
  std::shared_ptr<const CpuModel> model;
  std::unique_ptr<Engine> engine;
  int threads = 1;
  double pack_seconds = 0;
};

Bench open_bench(const BenchOptions& options, int64_t slots) {
  const Stopwatch watch;
  const ModelConfig config = ModelConfig::load(options.config);
  EngineOptions engine_options;
  engine_options.dtype = parse_engine_dtype(options.dtype);
  engine_options.threads = options.threads;
  engine_options.replicas = options.replicas;
  engine_options.slots = slots;
  engine_options.prefill_budget = options.budget;
  engine_options.max_waiting = 1 << 20;
  Bench out;
  out.threads = options.threads > 0 ? options.threads : available_cores();
  const cpu::Kernels& kernels = cpu::chosen_kernels();
  out.model = std::make_shared<const CpuModel>(config, *random_weights(config, 1),
                                               weight_type(engine_options.dtype, kernels), kernels,
                                               out.threads);
  out.pack_seconds = watch.seconds();
  auto executors = make_cpu_executors(out.model, engine_options);
  out.engine = std::make_unique<Engine>(EngineModel{config, std::nullopt, -1}, std::move(executors),
                                        engine_options);
  return out;
}

Json limits_json(const MachineLimits& limits, const StepLimit& step) {
  return {{"read_bandwidth", limits.read_bandwidth},
          {"update_bandwidth", limits.update_bandwidth},
          {"gemm_rate", limits.gemm_rate},
          {"own_gemm_rate", limits.own_gemm_rate},
          {"library_gemm_rate", limits.library_gemm_rate},
          {"compute_seconds", step.compute_seconds},
          {"memory_seconds", step.memory_seconds}};
}

std::string limits_text(const MachineLimits& limits, const StepLimit& step) {
  return strf(
      "limits: %.1f GB/s read, %.1f GB/s updated in place, %.0f GFLOP/s (engine's product %.0f, "
      "at::mm %.0f)\n        a step's arithmetic %.2f ms, its memory traffic %.2f ms\n",
      limits.read_bandwidth / 1e9, limits.update_bandwidth / 1e9, limits.gemm_rate / 1e9,
      limits.own_gemm_rate / 1e9, limits.library_gemm_rate / 1e9, step.compute_seconds * 1e3,
      step.memory_seconds * 1e3);
}

void run_decode(const BenchOptions& options) {
  if (options.load.output_tokens < 2) {
    fail_input("--output is ", options.load.output_tokens,
               ", but must be at least 2: time passes between tokens");
  }
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
                           {"limits", limits_json(limits, step)}}));
    return;
  }
  print_now(strf("decode, %lld sequences, %s: %.1f tokens/s, %.1f %% of the limit\n"
                 "inter-token p50 %.2f ms, p99 %.2f ms\n",
                 static_cast<long long>(options.batch), bench.engine->description().c_str(), rate,
                 share * 100, p50 * 1e3, p99 * 1e3) +
            limits_text(limits, step));
}

void run_prefill(const BenchOptions& options) {
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

void run_serve(const BenchOptions& options) {
  const Bench bench = open_bench(options, options.slots);
  Load warm = options.load;
  warm.requests = 1;
  warm.rate = 0;
  warm.output_tokens = 2;
  warm.prompt_tokens = 16;
  run_load(*bench.engine, warm);
  const LoadResult result = run_load(*bench.engine, options.load);
  const auto steps = double(result.after.steps - result.before.steps);
  const double width = double(result.after.decode_rows - result.before.decode_rows) / steps;
  const double rate = double(result.generated) / result.seconds;
  Json object = {{"engine", bench.engine->description()},
                 {"requests", options.load.requests},
                 {"output_tokens_per_second", rate},
                 {"seconds", result.seconds},
                 {"mean_decode_rows", width},
                 {"step_seconds", result.after.step_seconds - result.before.step_seconds},
                 {"swaps", result.after.swaps_out - result.before.swaps_out}};
  for (const auto& [name, values] : {std::pair{"first_token", &result.first_token},
                                     std::pair{"inter_token", &result.inter_token}}) {
    object[cat(name, "_p50")] = percentile(*values, 0.5);
    object[cat(name, "_p99")] = percentile(*values, 0.99);
    object[cat(name, "_max")] = percentile(*values, 1);
  }
  if (options.json) {
    print_now(to_text(object));
    return;
  }
  std::string text;
  for (const auto& [name, value] : object.items()) {
    text += strf("%-26s %s\n", name.c_str(),
                 value.is_string() ? value.get<std::string>().c_str() : value.dump().c_str());
  }
  print_now(text);
}

void add_common(CLI::App& app, BenchOptions& options) {
  app.add_option("--config", options.config, "A model's config.json; its weights will be random")
      ->required()
      ->type_name("FILE");
  app.add_option("--dtype", options.dtype, "float32, bfloat16, int8, or auto")
      ->capture_default_str();
  app.add_option("--threads", options.threads, "Threads, 0 for all cores")
      ->check(CLI::Range(0, kMostThreads))
      ->capture_default_str();
  app.add_option("--replicas", options.replicas, "Engines in this process")
      ->check(CLI::Range(1, kMostThreads))
      ->capture_default_str();
  app.add_option("--prefill-budget", options.budget, "Prompt tokens in a step")
      ->capture_default_str();
  app.add_option("--prompt", options.load.prompt_tokens, "Tokens of each prompt")
      ->capture_default_str();
  app.add_option("--output", options.load.output_tokens, "Tokens generated for each prompt")
      ->capture_default_str();
  app.add_option("--temperature", options.load.temperature, "0 takes the likeliest token")
      ->capture_default_str();
  app.add_option("--seed", options.load.seed, "Of prompts, sampling and arrivals")
      ->capture_default_str();
  app.add_flag("--json", options.json, "Print one JSON object");
}

struct Verb {
  CLI::App* app;
  BenchOptions& options;
};

Verb add_verb(CLI::App& bench, const char* name, const char* what, void (*run)(const BenchOptions&),
              const Load& defaults) {
  CLI::App* const app = bench.add_subcommand(name, what);
  const auto options = std::make_shared<BenchOptions>();
  options->load = defaults;
  add_common(*app, *options);
  app->callback([options, run] { run(*options); });
  return {app, *options};
}

}  // namespace

void add_bench(CLI::App& program) {
  CLI::App* const bench = program.add_subcommand(
      "bench", "Measure serving and training with random weights, beside the machine's limits");
  bench->require_subcommand(1);
  const Verb decode =
      add_verb(*bench, "decode", "Sequences that generate together", run_decode, {});
  decode.app->add_option("--batch", decode.options.batch, "Sequences")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  const Verb prefill =
      add_verb(*bench, "prefill", "Reading prompts", run_prefill, {.prompt_tokens = 2048});
  prefill.app->add_option("--batch", prefill.options.batch, "Prompts at a time")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  const Verb serve =
      add_verb(*bench, "serve", "Requests that come at random times", run_serve,
               {.requests = 64, .prompt_tokens = 128, .output_tokens = 128, .rate = 4});
  serve.app->add_option("--requests", serve.options.load.requests, "How many")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  serve.app->add_option("--rate", serve.options.load.rate, "Requests a second, 0 for all at once")
      ->capture_default_str();
  serve.app
      ->add_option("--burstiness", serve.options.load.burstiness,
                   "Shape of the gamma distribution between arrivals; 1: Poisson, below: bursts")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  serve.app
      ->add_option("--slots", serve.options.slots, "Sequences at a time, 0 for what memory holds")
      ->capture_default_str();
  add_bench_train(*bench);
  bench->footer(
      "Example:\n  laplace bench decode --config configs/laplace-160m.json --batch 32\n"
      "  laplace bench serve --config configs/laplace-160m.json --rate 8 --requests 100\n"
      "  laplace bench train --config configs/demo.json --seq-length 256 --micro-batch 8");
}

}  // namespace laplace::cli
