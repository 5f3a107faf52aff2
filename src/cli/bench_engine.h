// What the benchmarks of serving share: options, an engine over random weights, its steps.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "cli/bench_limits.h"
#include "cli/bench_load.h"
#include "serve/engine/cpu/cpu_model.h"
#include "serve/engine/engine.h"

namespace laplace::cli {

struct BenchOptions {
  std::string config;
  std::string dtype = "auto";
  int threads = 0;
  int replicas = 1;
  int64_t slots = 0;
  int64_t budget = 512;
  double stretch = EngineOptions{}.prefill_stretch;
  int64_t batch = 1;
  std::vector<int64_t> contexts;  // decode: the same tokens after so many others
  int64_t pairs = 20;             // decode: how often each context is measured
  int64_t beside = 0;             // prefill: sequences that decode meanwhile
  int64_t fixed_rounds = 0;       // serve: rounds of the same requests in fixed batches
  Load load;
  bool json = false;
};

struct TimedStep : StepReport {
  // Of the engine's thread, since its step before. With one thread that is what a step costs,
  // however busy the machine is with other work.
  double processor_seconds = 0;
};

// The engine's steps as they come; thread-safe.
class StepLog {
 public:
  // On the engine's thread, after a step.
  void add(const StepReport& step);
  // Those since the last call.
  std::vector<TimedStep> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(steps_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<TimedStep> steps_;
};

// Which of a step's two times.
using StepTime = double TimedStep::*;

// The times of the steps of exactly so many rows; an empty vector where there was none.
std::vector<double> times_of(const std::vector<TimedStep>& steps, StepTime time,
                             int64_t decode_rows, int64_t prefill_rows);
// Of the steps with so many decoding rows and prompt tokens beside them.
std::vector<double> mixed_times_of(const std::vector<TimedStep>& steps, StepTime time,
                                   int64_t decode_rows);

// A model with its engine, and what a measurement needs to know of it.
struct Bench {
  std::shared_ptr<const CpuModel> model;
  std::shared_ptr<StepLog> steps = std::make_shared<StepLog>();  // with `log_steps`
  std::unique_ptr<Engine> engine;
  int threads = 1;
  double pack_seconds = 0;
};

// Throws Error(kBadInput) for a configuration that does not open and slots that do not fit.
Bench open_bench(const BenchOptions& options, int64_t slots, bool log_steps = false);

// Refuses more replicas where `flag` times the steps of one engine.
void need_one_replica(const BenchOptions& options, const char* flag);

Json limits_json(const MachineLimits& limits, const StepLimit& step);
std::string limits_text(const MachineLimits& limits, const StepLimit& step);

// One figure a line, or JSON.
void print_figures(const Json& figures, bool json);

// The modes of a verb that have a file of their own.
void bench_contexts(const BenchOptions& options);     // decode --context
void bench_long_prompt(const BenchOptions& options);  // prefill --beside
void bench_arrivals(const BenchOptions& options);     // serve

}  // namespace laplace::cli
