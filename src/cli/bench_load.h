// Load on an engine, and what its clients see.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "serve/engine/engine.h"

namespace laplace::cli {

struct Load {
  int64_t requests = 1;
  int64_t prompt_tokens = 16, output_tokens = 64;
  std::shared_ptr<const SequenceSnapshot> from = {};  // where all begin instead of at a prompt
  double rate = 0;                                    // requests a second; 0: all at once
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
  // Of the process, when a tenth of the tokens was out, and the most from then on.
  int64_t resident_early = 0, resident_later = 0;
};

// Submits the load and waits until it is done, and its last step too.
LoadResult run_load(Engine& engine, const Load& load);

// The state after so many random tokens.
std::shared_ptr<const SequenceSnapshot> state_after(Engine& engine, int64_t tokens, uint64_t seed);

struct BesideResult {
  std::vector<double> before, during;  // seconds between tokens of those that decode
  double seconds = 0;                  // of the prompt
};

// `decoding` sequences generate; when each has output_tokens, a prompt of prompt_tokens comes.
BesideResult run_beside(Engine& engine, const Load& load, int64_t decoding);

// The value below which a share `p` of `values` lies; 0 for none.
double percentile(std::vector<double> values, double p);

}  // namespace laplace::cli
