// A small data set and model for training tests, made in a scratch directory.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "data/prepare.h"
#include "support/scratch.h"
#include "text/tokenizer.h"
#include "train/options.h"

namespace laplace::testing {

inline const char* const kTinyConfig = R"({
  "model_type": "laplace", "vocab_size": 320, "hidden_size": 32, "num_hidden_layers": 2,
  "num_heads": 4, "head_k_dim": 8, "head_v_dim": 8, "intermediate_size": 48, "conv_kernel": 4,
  "chunk_size": 16, "half_life_min": 1, "half_life_max": 64, "num_norm_tiers": 2,
  "bos_token_id": 256, "eos_token_id": 256, "torch_dtype": "float32"})";

// Byte tokens, one special token, a few hundred lines in several documents.
inline TrainOptions tiny_training(const ScratchDirectory& scratch) {
  write_file_atomic(scratch / "config.json", kTinyConfig);
  const std::vector<std::string> specials = {"<|endoftext|>"};
  std::filesystem::create_directories(scratch / "tokenizer");
  Tokenizer::from_merges({}, specials).save(scratch / "tokenizer");
  std::string lines;
  for (int i = 0; i < 400; ++i) {
    lines += cat("{\"text\": \"line ", i, " says ", (i * 7919) % 1000, " and some more words\"}\n");
  }
  write_file_atomic(scratch / "text.jsonl", lines);
  PrepareOptions prepare;
  prepare.tokenizer = scratch / "tokenizer";
  prepare.import.inputs = {(scratch / "text.jsonl").string()};
  prepare.out = scratch / "data";
  prepare.split.val_fraction = 0.1;
  prepare.threads = 1;
  prepare_dataset(prepare);

  TrainOptions options;
  options.config = (scratch / "config.json").string();
  options.data = (scratch / "data").string();
  options.out = (scratch / "run").string();
  options.steps = 12;
  options.seq_length = 32;
  options.batch = 4;
  options.micro_batch = 2;
  options.dtype = "float32";
  options.threads = 1;
  options.val_every = 0;
  options.checkpoint_every = 4;
  options.keep_checkpoints = 0;
  return options;
}

// The sentence of the error that `call` throws; of bad input, or else with another exit code.
template <class Call>
inline std::string refusal(const Call& call, int exit_code = 2) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), exit_code);
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

// The "loss" of every step in a run's log.jsonl, in order; NaN for one that is none.
inline std::vector<double> logged_losses(const Path& run) {
  std::vector<double> losses;
  std::istringstream text(read_file(run / "log.jsonl"));
  for (std::string line; std::getline(text, line);) {
    const Json json = parse_json(line, "log.jsonl");
    if (!json.contains("loss")) continue;
    losses.push_back(json["loss"].is_null() ? std::nan("") : json["loss"].get<double>());
  }
  return losses;
}

}  // namespace laplace::testing
