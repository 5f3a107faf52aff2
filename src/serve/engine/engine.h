// The serving engine: continuous batching over sequences whose state has a constant size.
//
// An engine has a pool of slots, one sequence's state each, and a thread that steps. One step feeds
// one token of every decoding sequence and a budget of prompt tokens, shared fairly among prompts.
// When more sequences run than there are slots, states are swapped out to the heap and back.
//
// The contract: a request's tokens and log-probabilities are a function of the request alone.
// Bit for bit they do not depend on what else is in the batch, on when it came, on how its prompt
// was cut, on swapping, on forks, on the number of threads or replicas. Device, dtype and
// instruction set do matter. See docs/serving-engine.md.
//
// Thread rules: all members may be called from any thread, also from within a Sink (but stop() and
// the destructor). No LibTorch here.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "model/config.h"
#include "serve/engine/request.h"
#include "text/tokenizer.h"

namespace laplace {

// What matrix products run in. kInt8: weights with a scale a row, activations with a scale a token.
// kInt4: weights with a scale for 32 of a row, activations in float32.
enum class EngineDtype { kAuto, kFloat32, kBfloat16, kInt8, kInt4 };
// "auto", "float32", "bfloat16", "int8", "int4"; throws Error(kBadInput) for any other name.
EngineDtype parse_engine_dtype(std::string_view name);
std::string_view engine_dtype_name(EngineDtype dtype);

// One step, for those who measure.
struct StepReport {
  double seconds = 0;  // planning, computing, sampling, telling the sinks
  int64_t decode_rows = 0, prefill_rows = 0;
  int64_t running = 0, waiting = 0;  // sequences with and without a slot, after it
};

struct EngineOptions {
  std::string device = "cpu";  // any other: portable operators on a device of LibTorch
  EngineDtype dtype = EngineDtype::kAuto;
  int threads = 0;               // of all replicas together, 0: all cores
  int replicas = 1;              // engines in this process, each with its own slots and thread
  int64_t slots = 0;             // of all replicas together; 0: as memory allows, see max_slots
  int64_t max_slots = 1024;      // with slots = 0
  int64_t prefill_budget = 512;  // prompt tokens a step, at least 1
  // Beside sequences that decode, a step takes at most so many times as long as without prompts,
  // more beside few where many prompts wait (prefill_pace.h); 0: no such bound.
  double prefill_stretch = 2.5;
  // Tokens after which a sequence gives its slot to one of the same priority that waits; 0: never.
  int64_t time_slice = 0;
  int64_t max_waiting = 1024;  // sequences that wait for a slot; more are refused
  double memory_share = 0.85;  // of the available memory that weights and slots may take
  bool quiet = false;          // no line on the log about slots and memory
  bool poison = false;         // tests: freed slots are filled with NaN
  // After each step, on its replica's thread: must be quick, must not throw.
  std::function<void(const StepReport&)> on_step = {};
};

// Everything about a model that is not weights.
struct EngineModel {
  ModelConfig config;
  std::optional<Tokenizer> tokenizer;  // without it there is no text, and no stop strings
  TokenId end_of_text = -1;            // -1: none
  // Ids from here on are never picked: the tokenizer's vocabulary, or the model's without one.
  int64_t num_ids() const {
    return tokenizer ? int64_t(tokenizer->vocab_size()) : config.vocab_size;
  }
};

// submit() was refused for no fault of the request.
class Refused : public Error {
 public:
  enum class Reason { kQueueFull, kStopping };
  Refused(Reason reason, const std::string& message)
      : Error(ErrorKind::kFailure, message), reason_(reason) {}
  Reason reason() const { return reason_; }

 private:
  Reason reason_;
};

// Sums over replicas; counters since the start.
struct EngineStats {
  int64_t running = 0;  // sequences in slots
  int64_t waiting = 0;  // that have not had a slot yet
  int64_t swapped = 0;  // that had one, and wait for another
  int64_t slots_used = 0, slots_total = 0;
  int64_t steps = 0;
  int64_t prompt_tokens = 0, generated_tokens = 0;
  int64_t swaps_out = 0, swaps_in = 0;
  int64_t finished = 0, cancelled = 0, failed = 0, refused = 0;  // failed: by an error
  int64_t last_decode_rows = 0, last_prefill_rows = 0;           // of the last step
  int64_t decode_rows = 0, prefill_rows = 0;                     // sums over all steps
  double step_seconds = 0;                                       // sum
};

class Executor;

class Engine {
 public:
  // Opens the weights of a model directory (as open_model_directory returns it), packs them, and
  // takes memory for the slots. Says on the log how many sequences fit. Throws Error(kBadInput).
  static std::unique_ptr<Engine> open(const Path& directory, EngineModel model,
                                      const EngineOptions& options);
  // For tests and benchmarks: a replica for each executor.
  Engine(EngineModel model, std::vector<std::unique_ptr<Executor>> executors,
         const EngineOptions& options);
  // stop().
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Queues the request. Throws Error(kBadInput) in one sentence for ids outside the vocabulary,
  // nothing to begin from (no prompt and no snapshot), a snapshot of another shape, and values out
  // of range, and more sequences than ever have room; Refused when the queue is full or the engine
  // is stopping. `sink` is not called then.
  RequestId submit(Request request, std::shared_ptr<Sink> sink);
  // Ends it within a step, with FinishReason::kCancelled. An id that is over is no error.
  void cancel(RequestId id);

  // No new requests; returns when all are finished, or false after `timeout`.
  bool drain(std::chrono::milliseconds timeout);
  // Cancels everything and ends the threads. Every sink gets its on_finish before it returns.
  void stop();

  const EngineModel& model() const;
  EngineStats stats() const;
  int64_t slots() const;           // of all replicas
  int64_t most_sequences() const;  // that may be in slots or wait
  int64_t bytes_per_sequence() const;
  // "bfloat16 on cpu (avx2), 2 threads": for logs and /version.
  std::string description() const;

 private:
  struct Replica;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace laplace
