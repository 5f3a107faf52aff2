// The training loop of one process.
//
// A step reads `batch` samples at the global cursor in micro-batches, adds up their gradients,
// clips, updates, reports, and at times validates and writes a checkpoint. A run is a function of
// (config, data, recipe): killed at any moment and resumed, it gives the same losses bit for bit.
// SIGINT and SIGTERM end it after the current step with a checkpoint.
//
// Under a time budget (`minutes`) the number of steps is fixed once the speed is known, after a few
// steps of warm-up, and stored with the checkpoints, so that resuming stays exact. It is fixed anew
// when the machine's speed changes so much that the run would miss the end of its budget.
#pragma once

#include <string>

#include "train/options.h"
#include "train/validation.h"

namespace laplace {

struct TrainResult {
  int64_t steps = 0;
  bool stopped = false;  // by a signal, before the last step
  double loss = 0;       // of the last step
  double seconds = 0;
  double tokens_per_second = 0;
  ValidationResult validation;  // over the whole split at the end; tokens 0 where there is none
};

// `recipe` is the resolved recipe, saved as <out>/recipe.toml. Throws laplace::Error.
TrainResult train(const TrainOptions& options, const std::string& recipe);

}  // namespace laplace
