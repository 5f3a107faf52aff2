// bench serve: requests that come at random times, beside the same requests in fixed batches; and
// bench prefill --beside: a long prompt beside sequences that decode.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "cli/bench_engine.h"

namespace laplace::cli {

namespace {

// What the engine did in some steps.
struct Work {
  double seconds = 0;
  double rows = 0;  // of decoding sequences, a step
  double tokens_per_second = 0;
};

Work work_of(const std::vector<TimedStep>& steps, StepTime time, int64_t generated) {
  Work out;
  for (const TimedStep& step : steps) {
    out.seconds += step.*time;
    out.rows += double(step.decode_rows);
  }
  out.rows /= double(steps.size());
  out.tokens_per_second = double(generated) / out.seconds;
  return out;
}

// Processor time where one thread computes: other work on the machine does not count there.
StepTime step_time(const Bench& bench, const BenchOptions& options) {
  const bool one = bench.threads == 1 && options.replicas == 1;
  return one ? &TimedStep::processor_seconds : &TimedStep::seconds;
}

const char* unit_of(StepTime time) {
  return time == &TimedStep::seconds ? "seconds" : "processor seconds of the one thread";
}

// About as many requests, so many at a time: all begin together, and the next begin when all are
// done.
Work fixed_batches(const Bench& bench, const BenchOptions& options, StepTime time, int64_t width) {
  Load load = options.load;
  load.requests = width;
  load.rate = 0;
  bench.steps->take();
  int64_t generated = 0;
  for (int64_t done = 0; done < options.load.requests; done += width) {
    generated += run_load(*bench.engine, load).generated;
  }
  return work_of(bench.steps->take(), time, generated);
}

// The rate of fixed batches at `rows`, between those of the whole widths around it.
double fixed_rate(const Bench& bench, const BenchOptions& options, StepTime time, double rows) {
  const auto narrow = std::max<int64_t>(int64_t(rows), 1);
  if (narrow + 1 > bench.engine->slots()) {
    fail_input("the mean width is ", rows, ", more than the slots can hold (",
               bench.engine->slots(), "); give more slots or a lower --rate");
  }
  const Work below = fixed_batches(bench, options, time, narrow);
  const Work above = fixed_batches(bench, options, time, narrow + 1);
  const double part = (rows - below.rows) / (above.rows - below.rows);
  return below.tokens_per_second + part * (above.tokens_per_second - below.tokens_per_second);
}

void add_percentiles(const char* name, const std::vector<double>& values, Json& figures) {
  if (values.empty()) return;  // no second token, no time between two
  figures[cat(name, "_p50")] = percentile(values, 0.5);
  figures[cat(name, "_p99")] = percentile(values, 0.99);
  figures[cat(name, "_max")] = percentile(values, 1);
}

// The steps of the first minute from the engine's very first on, and how full it was.
void add_steps(const std::vector<TimedStep>& steps, StepTime time, Json& figures) {
  constexpr double kMinute = 60;
  std::vector<double> seconds;
  double clock = 0, slowest_decode = 0;
  TimedStep most, slowest;
  for (const TimedStep& step : steps) {
    most.running = std::max(most.running, step.running);
    most.waiting = std::max(most.waiting, step.waiting);
    clock += step.seconds;
    if (clock > kMinute) continue;
    seconds.push_back(step.*time);
    if (step.*time > slowest.*time) slowest = step;
    if (step.prefill_rows == 0) slowest_decode = std::max(slowest_decode, step.*time);
  }
  figures["most_running"] = most.running;
  figures["most_waiting"] = most.waiting;
  const double median = percentile(seconds, 0.5);
  figures["first_minute_step_p50"] = median;
  figures["first_minute_step_max"] = slowest.*time;
  figures["first_minute_max_to_p50"] = slowest.*time / median;
  figures["first_minute_decode_max_to_p50"] = slowest_decode / median;
  figures["slowest_step_rows"] = {{"decode", slowest.decode_rows},
                                  {"prefill", slowest.prefill_rows}};
}

}  // namespace

void bench_arrivals(const BenchOptions& options) {
  if (options.fixed_rounds > 0 && options.load.output_tokens < 2) {
    fail_input(
        "--output is 1, but must be at least 2 with --fixed-rounds: a prompt ends in the first");
  }
  if (options.fixed_rounds > 0) need_one_replica(options, "--fixed-rounds");
  const Bench bench = open_bench(options, options.slots, true);
  const LoadResult result = run_load(*bench.engine, options.load);
  const auto steps = bench.steps->take();
  const StepTime time = step_time(bench, options);
  Work work = work_of(steps, time, result.generated);
  Json figures = {{"engine", bench.engine->description()},
                  {"steps_counted_in", unit_of(time)},
                  {"requests", options.load.requests},
                  {"failed", result.after.failed},
                  {"replicas", options.replicas},  // figures of steps are those of each
                  {"slots", bench.engine->slots()},
                  {"output_tokens_per_second", double(result.generated) / result.seconds},
                  {"seconds", result.seconds},
                  {"step_seconds", work.seconds},
                  {"mean_decode_rows", work.rows},
                  {"swaps", result.after.swaps_out}};
  add_percentiles("first_token", result.first_token, figures);
  add_percentiles("inter_token", result.inter_token, figures);
  add_steps(steps, time, figures);
  std::vector<double> shares, rates, fixed_rates;
  for (int64_t round = 0; round < options.fixed_rounds; ++round) {
    fixed_rates.push_back(fixed_rate(bench, options, time, work.rows));
    const LoadResult again = run_load(*bench.engine, options.load);
    work = work_of(bench.steps->take(), time, again.generated);
    rates.push_back(work.tokens_per_second);
    shares.push_back(rates.back() / fixed_rates.back());
  }
  if (!shares.empty()) {
    figures["busy_tokens_per_second"] = percentile(rates, 0.5);
    figures["fixed_tokens_per_second"] = percentile(fixed_rates, 0.5);
    figures["share_of_fixed"] = percentile(shares, 0.5);
  }
  print_figures(figures, options.json);
}

void bench_long_prompt(const BenchOptions& options) {
  need_one_replica(options, "--beside");
  const Bench bench = open_bench(options, options.beside + 1, true);
  Load alone = options.load;
  alone.requests = 1;
  alone.output_tokens = 1;
  alone.prompt_tokens = 5 * options.budget;
  run_load(*bench.engine, alone);
  const StepTime time = step_time(bench, options);
  const double budget_step =
      percentile(times_of(bench.steps->take(), time, 0, options.budget), 0.5);
  const BesideResult result = run_beside(*bench.engine, options.load, options.beside);
  const auto steps = bench.steps->take();
  const double before = percentile(times_of(steps, time, options.beside, 0), 0.99);
  const double during = percentile(mixed_times_of(steps, time, options.beside), 0.99);
  Json figures = {{"engine", bench.engine->description()},
                  {"steps_counted_in", unit_of(time)},
                  {"decoding", options.beside},
                  {"prompt_tokens", options.load.prompt_tokens},
                  {"prompt_seconds", result.seconds},
                  {"budgeted_step", budget_step},
                  {"decode_step_p99", before},
                  {"mixed_step_p99", during},
                  {"p99_rise_in_budgeted_steps", (during - before) / budget_step}};
  add_percentiles("inter_token_before", result.before, figures);
  add_percentiles("inter_token_during", result.during, figures);
  print_figures(figures, options.json);
}

}  // namespace laplace::cli
