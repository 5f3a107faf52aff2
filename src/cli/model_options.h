// What the verbs that run a model share: which model, where and how it computes, and opening it.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "model/config.h"
#include "serve/engine/engine.h"
#include "text/tokenizer.h"

namespace laplace::cli {

struct ModelOptions {
  std::string model;
  std::string device = "cpu";
  std::string dtype = "auto";
  int threads = 0;  // 0: all cores
};

// --model (required), --device, --dtype, --threads.
void add_model_options(CLI::App& app, ModelOptions& options);

// Everything about a model but its weights.
struct OpenModel {
  Path directory;  // the model directory itself, also when a run directory was given
  ModelConfig config;
  std::optional<Tokenizer> tokenizer;  // nothing where the directory has none
  TokenId end_of_text = -1;            // the tokenizer's, else the config's, else -1

  // Throws Error(kBadInput) when there is none.
  const Tokenizer& need_tokenizer() const;
};

// Throws Error(kBadInput) in one sentence for a model that does not open, and a tokenizer with more
// tokens than the model.
OpenModel open_model(const ModelOptions& options);

// An engine for one sequence at a time, as the verbs that run in a terminal need it. Throws
// Error(kBadInput) for a device that LibTorch does not know or have, and a dtype that is none.
std::unique_ptr<Engine> open_engine(const ModelOptions& options, const OpenModel& model);

// What generate and chat share.
struct SamplingOptions {
  Request request;               // sampling, max_tokens, min_tokens, stops
  std::optional<uint64_t> seed;  // nothing: a new one each run

  // Checks all values and fills in the seed. Throws Error(kBadInput).
  Request resolve() const;
};

uint64_t new_seed();

// --temperature, --top-k, --top-p, --min-p, the penalties, --seed, --stop.
void add_sampling_options(CLI::App& app, SamplingOptions& options);

// Where the tokenizer of a place lies: of a run, in its checkpoint.
Path tokenizer_place(const Path& path);

// The text of a file, or of standard input for "-", without a byte order mark.
std::string read_input(const std::string& name);

// Writes to standard output and flushes, so that streamed text is seen as it comes. Throws
// Error(kFailure) when nobody takes it.
void print_now(std::string_view text);

}  // namespace laplace::cli
