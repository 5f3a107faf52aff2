// See bench_engine.h.
#include "cli/bench_engine.h"

#include <ctime>

#include "base/progress.h"
#include "base/threads.h"
#include "cli/model_options.h"
#include "serve/engine/open_engine.h"

namespace laplace::cli {

void StepLog::add(const StepReport& step) {
  thread_local double before = 0;
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  const double used = double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
  const std::lock_guard lock(mutex_);
  steps_.push_back({step, used - std::exchange(before, used)});
}

std::vector<double> times_of(const std::vector<TimedStep>& steps, StepTime time,
                             int64_t decode_rows, int64_t prefill_rows) {
  std::vector<double> out;
  for (const TimedStep& step : steps) {
    if (step.decode_rows == decode_rows && step.prefill_rows == prefill_rows) {
      out.push_back(step.*time);
    }
  }
  return out;
}

std::vector<double> mixed_times_of(const std::vector<TimedStep>& steps, StepTime time,
                                   int64_t decode_rows) {
  std::vector<double> out;
  for (const TimedStep& step : steps) {
    if (step.decode_rows == decode_rows && step.prefill_rows > 0) out.push_back(step.*time);
  }
  return out;
}

Bench open_bench(const BenchOptions& options, int64_t slots, bool log_steps) {
  const Stopwatch watch;
  const ModelConfig config = ModelConfig::load(options.config);
  EngineOptions engine_options;
  engine_options.dtype = parse_engine_dtype(options.dtype);
  engine_options.threads = options.threads;
  engine_options.replicas = options.replicas;
  engine_options.slots = slots;
  engine_options.prefill_budget = options.budget;
  engine_options.prefill_stretch = options.stretch;
  engine_options.max_waiting = 1 << 20;
  Bench out;
  if (log_steps) {
    engine_options.on_step = [steps = out.steps](const StepReport& step) { steps->add(step); };
  }
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

void need_one_replica(const BenchOptions& options, const char* flag) {
  if (options.replicas == 1) return;
  fail_input("--replicas is ", options.replicas, ", but must be 1 with ", flag,
             ", which times the steps of one engine");
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

void print_figures(const Json& figures, bool json) {
  if (json) return print_now(to_text(figures));
  std::string text;
  for (const auto& [name, value] : figures.items()) {
    const std::string shown = value.is_string()         ? value.get<std::string>()
                              : value.is_number_float() ? strf("%.6g", value.get<double>())
                                                        : value.dump();
    text += strf("%-28s %s\n", name.c_str(), shown.c_str());
  }
  print_now(text);
}

}  // namespace laplace::cli
