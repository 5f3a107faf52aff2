// bench train: a training step by phases, beside the time of its matrix products alone.
#include <ATen/ops/randint.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/process.h"
#include "base/progress.h"
#include "base/strings.h"
#include "cli/bench_ops.h"
#include "cli/checks.h"
#include "cli/model_options.h"
#include "cli/verbs.h"
#include "ops/caching_allocator.h"
#include "ops/simd/targets.h"
#include "train/gemm_limit.h"
#include "train/learner.h"

namespace laplace::cli {

namespace {

struct BenchTrainOptions {
  std::string config;
  std::string dtype = "auto";
  std::string recompute = "none";
  std::string newton_schulz = "simple";
  int64_t seq_length = 2048;
  int64_t micro_batch = 1;
  double step_tokens = 524288;
  int rounds = 5;
  bool json = false;
};

// Adds up seconds by phase, in the order in which the phases first ran.
class Phases final : public PhaseClock {
 public:
  void lap(std::string_view phase) override {
    const double seconds = watch_.seconds();
    watch_.restart();
    if (!on_) return;
    const auto found = std::find_if(times_.begin(), times_.end(),
                                    [&](const auto& entry) { return entry.first == phase; });
    if (found == times_.end()) {
      times_.emplace_back(phase, seconds);
    } else {
      found->second += seconds;
    }
  }
  void start(bool on) {
    on_ = on;
    watch_.restart();
  }
  const std::vector<std::pair<std::string, double>>& times() const { return times_; }

 private:
  Stopwatch watch_;
  bool on_ = false;
  std::vector<std::pair<std::string, double>> times_;
};

struct Measurement {
  double micro_batch_seconds = 1e30;  // forward and backward, the best round's
  double optimiser_seconds = 1e30;
  double products_seconds = 1e30;  // for a micro-batch, plain at::mm
  double flops_per_second = 0;
  int64_t new_blocks = 0;  // of 1 MB and more, in the steady rounds
};

Measurement measure(const ModelConfig& config, const BenchTrainOptions& options, Phases& phases) {
  TrainOptions train;
  train.dtype = options.dtype;
  train.recompute = options.recompute;
  train.newton_schulz = options.newton_schulz;
  Learner learner(config, train, &phases);
  const int64_t rows = options.micro_batch * options.seq_length;
  const at::Tensor tokens =
      at::randint(config.vocab_size, {options.micro_batch, options.seq_length + 1},
                  at::TensorOptions(at::kLong));
  Measurement best;
  for (int round = -1; round < options.rounds; ++round) {  // the first one warms up
    const GemmLimit limit =
        measure_gemm_limit(config, rows, learner.model().compute_dtype(), at::kCPU);
    const int64_t blocks = ops::caching_allocator_stats().new_blocks;
    phases.start(round >= 0);
    Stopwatch watch;
    learner.accumulate(tokens, {}, 1);
    const double micro_batch = watch.seconds();
    watch.restart();
    learner.step(1e-4, 1e-4);
    if (round < 0) continue;
    const double recomputed = options.recompute == "layer" ? limit.recompute_seconds_per_token : 0;
    best.micro_batch_seconds = std::min(best.micro_batch_seconds, micro_batch);
    best.optimiser_seconds = std::min(best.optimiser_seconds, watch.seconds());
    best.products_seconds =
        std::min(best.products_seconds, (limit.seconds_per_token + recomputed) * double(rows));
    best.flops_per_second = std::max(best.flops_per_second, limit.flops_per_second);
    best.new_blocks += ops::caching_allocator_stats().new_blocks - blocks;
  }
  return best;
}

void run(const BenchTrainOptions& options) {
  ops::install_caching_allocator();
  const ModelConfig config = ModelConfig::load(options.config);
  Phases phases;
  const Measurement m = measure(config, options, phases);
  const double rows = double(options.micro_batch * options.seq_length);
  const double optimiser = m.optimiser_seconds * std::min(1.0, rows / options.step_tokens);
  const double rate = rows / (m.micro_batch_seconds + optimiser);
  const double share = m.products_seconds / (m.micro_batch_seconds + optimiser);
  Json table = Json::object();
  double sum = 0;
  for (const auto& [phase, seconds] : phases.times()) sum += seconds;
  for (const auto& [phase, seconds] : phases.times()) {
    table[phase] = seconds / double(options.rounds);
  }
  if (options.json) {
    print_now(to_text(Json{{"tokens_per_second", rate},
                           {"share_of_limit", share},
                           {"micro_batch_seconds", m.micro_batch_seconds},
                           {"products_seconds", m.products_seconds},
                           {"optimiser_seconds", m.optimiser_seconds},
                           {"flops_per_second", m.flops_per_second},
                           {"instruction_set", ops::instruction_set()},
                           {"new_large_blocks", m.new_blocks},
                           {"peak_resident_bytes", peak_resident_bytes()},
                           {"phases", table}}));
    return;
  }
  std::string text =
      strf("training, %lld x %lld tokens, %s, recompute %s: %.0f tokens/s, %.1f %% of the limit\n",
           static_cast<long long>(options.micro_batch), static_cast<long long>(options.seq_length),
           ops::fused_kernels() ? ops::instruction_set().c_str() : "portable",
           options.recompute.c_str(), rate, share * 100);
  text += strf("limit: the same matrix products as plain at::mm, %.1f ms at %.0f GFLOP/s\n",
               m.products_seconds * 1e3, m.flops_per_second / 1e9);
  for (const auto& [phase, seconds] : phases.times()) {
    text += strf("  %-22s %9.2f ms  %5.1f %%\n", phase.c_str(),
                 seconds * 1e3 / double(options.rounds), 100 * seconds / sum);
  }
  text += strf("forward and backward %.1f ms; optimiser %.1f ms once in %.0f tokens\n",
               m.micro_batch_seconds * 1e3, m.optimiser_seconds * 1e3, options.step_tokens);
  text += strf("blocks of 1 MB or more taken from the system in steady steps: %lld; peak RSS %s\n",
               static_cast<long long>(m.new_blocks),
               human_bytes(double(peak_resident_bytes())).c_str());
  print_now(text);
}

}  // namespace

void add_bench_train(CLI::App& bench) {
  CLI::App* const app = bench.add_subcommand(
      "train", "A training step by phases, beside its matrix products alone (best of rounds)");
  const auto options = std::make_shared<BenchTrainOptions>();
  app->add_option("--config", options->config, "A model's config.json")
      ->required()
      ->type_name("FILE");
  app->add_option("--seq-length", options->seq_length, "Tokens of a row")
      ->check(above_zero())
      ->capture_default_str();
  app->add_option("--micro-batch", options->micro_batch, "Rows at once")
      ->check(above_zero())
      ->capture_default_str();
  app->add_option("--dtype", options->dtype, "auto, float32 or bfloat16")->capture_default_str();
  app->add_option("--recompute", options->recompute, "none or layer")
      ->check(CLI::IsMember({"none", "layer"}))
      ->capture_default_str();
  app->add_option("--newton-schulz", options->newton_schulz, "Muon's coefficients")
      ->capture_default_str();
  app->add_option("--step-tokens", options->step_tokens, "Tokens of an optimiser step")
      ->check(above_zero())
      ->capture_default_str();
  app->add_option("--rounds", options->rounds, "How often")
      ->check(above_zero())
      ->capture_default_str();
  app->add_flag("--json", options->json, "Print one JSON object");
  app->footer(
      "Example:\n  laplace bench train --config configs/demo.json --seq-length 256 --micro-batch "
      "8");
  app->callback([options] { run(*options); });
  add_bench_ops(bench);
}

}  // namespace laplace::cli
