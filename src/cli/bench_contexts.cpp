// bench decode --context: what a token costs after so many others. A state has a constant size, so
// the cost should not depend on them; each context is measured in turn, again and again.
#include <algorithm>
#include <set>

#include "base/error.h"
#include "cli/bench_engine.h"

namespace laplace::cli {

namespace {

// The steps after each context, turn by turn.
using Turns = std::vector<std::vector<std::vector<TimedStep>>>;

Turns measure_turns(const Bench& bench, const BenchOptions& options) {
  std::vector<Load> loads;
  for (const int64_t context : options.contexts) {
    loads.push_back(options.load);
    loads.back().requests = options.batch;
    loads.back().from = state_after(*bench.engine, context, options.load.seed);
    run_load(*bench.engine, loads.back());  // nothing is new any more
  }
  Turns out(loads.size());
  for (int64_t pair = 0; pair < options.pairs; ++pair) {
    for (size_t i = 0; i < loads.size(); ++i) {
      // There and back, so that a drift of the machine hits all alike.
      const size_t which = pair % 2 == 0 ? i : loads.size() - 1 - i;
      bench.steps->take();
      run_load(*bench.engine, loads[which]);
      out[which].push_back(bench.steps->take());
    }
  }
  return out;
}

// The median step of each turn: the cost of one token of each sequence.
std::vector<double> medians(const std::vector<std::vector<TimedStep>>& turns, StepTime time,
                            int64_t batch) {
  std::vector<double> out;
  for (const auto& steps : turns) out.push_back(percentile(times_of(steps, time, batch, 0), 0.5));
  return out;
}

// The best step of all turns: what is left when no other work was in the way.
double best(const std::vector<std::vector<TimedStep>>& turns, StepTime time, int64_t batch) {
  double out = 1e30;
  for (const auto& steps : turns) {
    for (const double cost : times_of(steps, time, batch, 0)) out = std::min(out, cost);
  }
  return out;
}

void add_costs(const Turns& turns, const BenchOptions& options, StepTime time,
               const std::string& unit, Json& figures) {
  const auto base = medians(turns[0], time, options.batch);
  for (size_t i = 0; i < turns.size(); ++i) {
    const auto costs = medians(turns[i], time, options.batch);
    const std::string name = cat("after_", options.contexts[i], "_", unit);
    const double least = best(turns[i], time, options.batch);
    figures[name] = percentile(costs, 0.5);
    figures[name + "_best"] = least;
    if (i == 0) continue;
    figures[name + "_best_percent_more"] = 100 * (least / best(turns[0], time, options.batch) - 1);
    std::vector<double> more;
    for (size_t pair = 0; pair < costs.size(); ++pair) {
      more.push_back(100 * (costs[pair] / base[pair] - 1));
    }
    figures[name + "_percent_more"] = percentile(more, 0.5);
    figures[name + "_percent_more_quartiles"] = {percentile(more, 0.25), percentile(more, 0.75)};
  }
}

}  // namespace

void bench_contexts(const BenchOptions& options) {
  for (const int64_t context : options.contexts) {
    if (context < 1) fail_input("--context has ", context, ", but must be tokens, at least 1");
  }
  const std::set<int64_t> different(options.contexts.begin(), options.contexts.end());
  if (different.size() < options.contexts.size()) fail_input("--context names one length twice");
  need_one_replica(options, "--context");
  const Bench bench = open_bench(options, options.batch, true);
  const Turns turns = measure_turns(bench, options);
  Json figures = {{"engine", bench.engine->description()},
                  {"sequences", options.batch},
                  {"pairs", options.pairs}};
  add_costs(turns, options, &TimedStep::seconds, "seconds", figures);
  if (bench.threads == 1) {
    add_costs(turns, options, &TimedStep::processor_seconds, "processor_seconds", figures);
  }
  print_figures(figures, options.json);
}

}  // namespace laplace::cli
