// Everything a training run can be told. Every field is a flag of `laplace train` and, but for
// resume, may stand in the recipe under the same name (src/cli/train.cpp binds and explains them).
#pragma once

#include <cstdint>
#include <string>

namespace laplace {

struct TrainOptions {
  std::string config;  // config.json or a model directory
  std::string data;    // prepared token shards
  std::string out;     // run directory
  bool resume = false;

  int64_t steps = 0;   // 0: decided by `minutes` or `tokens`
  double minutes = 0;  // time budget: the steps are fixed once the speed is known
  double tokens = 0;   // token budget

  int64_t seq_length = 2048;       // T, tokens of a row
  int64_t batch = 8;               // rows of a step
  int64_t micro_batch = 0;         // rows of one forward and backward, 0: the whole batch
  std::string recompute = "auto";  // none, layer or auto: see model/gradient_pass.h
  uint64_t seed = 0;
  std::string dtype = "auto";  // of matrix products
  std::string device = "cpu";
  int threads = 0;  // 0: all cores

  double lr = 5e-3;     // peak of Muon's rate
  double adamw_lr = 0;  // peak of AdamW's rate, 0: as lr
  std::string schedule = "cosine";
  double warmup = 0.02;  // share of the steps if below 1, else a number of steps
  double decay = 0.2;    // the same, for the final descent of schedule wsd
  double min_lr_ratio = 0.1;
  double clip = 1.0;  // largest gradient norm, 0: no clipping
  double weight_decay = 0.1;
  double momentum = 0.95;
  bool nesterov = true;
  std::string newton_schulz = "simple";
  std::string newton_schulz_form = "auto";
  std::string adjust = "match_rms_adamw";
  bool per_block = false;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;

  int64_t val_every = 250;         // steps, 0: only at the end
  double val_tokens = 65536;       // of a validation in between; the last one reads the whole split
  bool val_carry = false;          // validation carries the state from window to window
  int64_t checkpoint_every = 500;  // steps, 0: only at the end
  double checkpoint_minutes = 10;  // and at least this often, 0: off
  int64_t keep_checkpoints = 2;    // 0: all
};

}  // namespace laplace
