// Load on an engine, and what its clients see.
#pragma once

#include <cstdint>
#include <vector>

#include "serve/engine/engine.h"

namespace laplace::cli {

struct Load {
  int64_t requests = 1;
  int64_t prompt_tokens = 16, output_tokens = 64;
  double rate = 0;        // requests a second; 0: all at once
  double burstiness = 1;  // shape of the gamma distribution between arrivals; 1: Poisson
  uint64_t seed = 1;
  double temperature = 0;
};

struct LoadResult {
  std::vector<double> first_token;  // seconds from submission, by request
  std::vector<double> inter_token;  // seconds between tokens, all requests
  double seconds = 0;               // from the first submission to the last token
  int64_t generated = 0;
  // From when all had their first token until the first one ended: the batch is constant then.
  // Where that never was (few tokens of a tiny model): the whole run.
  double steady_seconds = 0;
  int64_t steady_tokens = 0;
  EngineStats before, after;
};

// Submits the load and waits until it is done.
LoadResult run_load(Engine& engine, const Load& load);

// The value below which a share `p` of `values` lies; 0 for none.
double percentile(std::vector<double> values, double p);

}  // namespace laplace::cli
