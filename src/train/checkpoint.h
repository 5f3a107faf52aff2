// Checkpoints of a run: <run>/checkpoints/step-00000100/, a model directory with the optimisers'
// state.
//
//   config.json model.safetensors tokenizer.json       what every verb opens
//   generation_config.json tokenizer_config.json       for other programs
//   optimizer.safetensors state.json                   what training resumes from
//   manifest.json                                      written last: complete
//
// A checkpoint is filled under a temporary name, synced and renamed; `latest` is updated after
// that. Only complete checkpoints are opened; a damaged one falls back to the one before.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/json.h"
#include "text/tokenizer.h"
#include "train/learner.h"

namespace laplace {

// Where a run stands. Everything else follows from this, the recipe and the parameters.
struct RunState {
  int64_t step = 0;         // steps taken
  uint64_t cursor = 0;      // global sample position
  int64_t total_steps = 0;  // of the schedule; 0: not fixed yet (a time budget, still measuring)
  int64_t adamw_steps = 0;
  int64_t skipped = 0;  // steps skipped for gradients that were not finite
  double seconds = 0;   // trained so far
  // What a resumed run must share with this one, or its samples would be others.
  uint64_t seed = 0;
  int64_t batch = 0;
  int64_t seq_length = 0;
  int64_t train_tokens = 0;
  std::string data;   // TokenStream::fingerprint() of the training split
  std::string dtype;  // of matrix products, "float32" or "bfloat16"

  Json to_json() const;
  static RunState from_json(const Json& json, const std::string& source);
};

// Writes a checkpoint of `step` and keeps the newest `keep` (0: all).
void save_checkpoint(const Path& run, const ModelConfig& config,
                     const std::optional<Tokenizer>& tokenizer, const Learner& learner,
                     const RunState& state, int64_t keep);

// Removes what killed processes were writing. Only while the run's lock is held.
void remove_left_overs(const Path& run);

// Restores the newest complete checkpoint; nothing when the run has none yet.
std::optional<RunState> load_checkpoint(const Path& run, const ModelConfig& config,
                                        Learner& learner);

// True if the run directory holds at least one checkpoint, complete or not.
bool has_checkpoints(const Path& run);

}  // namespace laplace
