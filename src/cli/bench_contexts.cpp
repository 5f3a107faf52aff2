// bench decode --context: what a token costs after so many others. A state has a constant size, so
// the cost should not depend on them; each context is measured in turn, again and again.
#include "base/error.h"
#include "cli/bench_engine.h"

namespace laplace::cli {

namespace {

// Seconds of a token's step after each context, one figure a pair.
using Samples = std::vector<std::vector<double>>;

Samples measure(const Bench& bench, const BenchOptions& options) {
  std::vector<Load> loads;
  for (const int64_t context : options.contexts) {
    loads.push_back(options.load);
    loads.back().requests = options.batch;
    loads.back().from = state_after(*bench.engine, context, options.load.seed);
    run_load(*bench.engine, loads.back());  // nothing is new any more
  }
  Samples out(loads.size());
  for (int64_t pair = 0; pair < options.pairs; ++pair) {
    for (size_t i = 0; i < loads.size(); ++i) {
      // There and back, so that a drift of the machine hits all alike.
      const size_t which = pair % 2 == 0 ? i : loads.size() - 1 - i;
      bench.steps->take();
      run_load(*bench.engine, loads[which]);
      const auto steps = seconds_of(bench.steps->take(), options.batch, 0);
      out[which].push_back(percentile(steps, 0.5));
    }
  }
  return out;
}

}  // namespace

void bench_contexts(const BenchOptions& options) {
  for (const int64_t context : options.contexts) {
    if (context < 1) fail_input("--context has ", context, ", but must be tokens, at least 1");
  }
  const Bench bench = open_bench(options, options.batch, true);
  const Samples samples = measure(bench, options);
  Json figures = {{"engine", bench.engine->description()},
                  {"sequences", options.batch},
                  {"pairs", options.pairs}};
  for (size_t i = 0; i < samples.size(); ++i) {
    std::vector<double> ratios;
    for (size_t pair = 0; pair < samples[i].size(); ++pair) {
      ratios.push_back(samples[i][pair] / samples[0][pair]);
    }
    const std::string name = cat("after_", options.contexts[i]);
    figures[name + "_seconds"] = percentile(samples[i], 0.5);
    if (i == 0) continue;
    figures[name + "_percent_more"] = 100 * (percentile(ratios, 0.5) - 1);
    figures[name + "_percent_more_quartiles"] = {100 * (percentile(ratios, 0.25) - 1),
                                                 100 * (percentile(ratios, 0.75) - 1)};
  }
  print_figures(figures, options.json);
}

}  // namespace laplace::cli
