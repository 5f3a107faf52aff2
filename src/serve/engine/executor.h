// What computes a step: slots with states, tokens in, logits out. The scheduler owns one.
//
// All members are called by one thread, except where said. No LibTorch here.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "model/config.h"
#include "text/tokenizer.h"

namespace laplace {

// Successive tokens of the sequence in a slot.
struct Segment {
  int64_t slot = 0;
  std::span<const TokenId> tokens;
};

class Executor {
 public:
  virtual ~Executor() = default;

  virtual const ModelConfig& config() const = 0;
  virtual int64_t slots() const = 0;
  // Host or device memory that one more sequence takes.
  virtual int64_t bytes_per_sequence() const = 0;
  // "bfloat16 on cpu (avx2), 2 threads"
  virtual std::string description() const = 0;

  // Feeds the segments; a slot occurs in one of them at most. Rows are the tokens in order.
  // `logit_rows`: ascending row numbers whose logits are wanted; logits [logit_rows.size(), V].
  // A row's logits, and the state after it, are the same bits whatever else is in the step and
  // however a sequence is cut into segments.
  virtual void step(std::span<const Segment> segments, std::span<const int64_t> logit_rows,
                    float* logits) = 0;

  // A slot's state: zero for a fresh sequence, out, in, and no longer used.
  // `state`: the layout of SequenceSnapshot::slot.
  virtual void zero(int64_t slot) = 0;
  virtual void save(int64_t slot, std::span<float> state) = 0;
  virtual void load(int64_t slot, std::span<const float> state) = 0;
  virtual void release(int64_t slot) = 0;

  // body(i) for i in [0, count), on the executor's threads; what follows a step (sampling).
  virtual void parallel(int64_t count, const std::function<void(int64_t)>& body) = 0;
  // Called once by the thread that will call step().
  virtual void own_thread() {}
  // Between steps(true), before a step, and steps(false), when nothing is left to do, helper
  // threads may spin.
  virtual void steps(bool busy) { (void)busy; }
};

}  // namespace laplace
