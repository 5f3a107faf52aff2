// Decides what a step computes, and turns its results into tokens and events. One thread.
//
// A step feeds the pending token of every decoding sequence, and prompt tokens within a budget that
// all prompts share. Sequences get slots by priority, then in the order they came; one with a
// larger priority takes the slot of the smallest, whose state is swapped out.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "serve/engine/engine.h"
#include "serve/engine/executor.h"
#include "serve/engine/prefill_pace.h"
#include "serve/engine/sequence.h"

namespace laplace {

class Scheduler {
 public:
  // Both must outlive this.
  Scheduler(const EngineModel& model, Executor& executor, const EngineOptions& options);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // A request that has been checked.
  void add(std::shared_ptr<Job> job);
  void cancel(RequestId id);
  // Ends everything; every sink gets its on_finish.
  void cancel_all(FinishReason reason);
  // Whether there is anything to do.
  bool busy() const { return !running_.empty() || !waiting_.empty(); }
  void step();

  // Of this scheduler; `refused` is not its business.
  const EngineStats& stats() const { return stats_; }
  void count_states();

 private:
  using SequencePtr = std::unique_ptr<Sequence>;
  // What one row of logits is for, and what came of it.
  struct Row {
    Sequence* sequence = nullptr;
    std::span<const float> logits = {};
    int64_t prompt_token = -1;  // with prompt_log_probs: the token this row predicts
    bool at_end = false;        // all that was to be fed is fed: a token is picked
    int64_t snapshot_offset = -1;
    TokenId picked = -1;
    TokenResult result = {};
    std::string error = {};
  };

  void expire();
  void admit();
  bool make_room(const Sequence& wanted);
  void enter(SequencePtr sequence);
  void swap_out(SequencePtr sequence);
  void give_slot(Sequence& sequence);
  void pick_first(Sequence& sequence);

  void plan();
  void plan_prompts();
  int64_t wanted_tokens(const Sequence& sequence) const;
  void feed_prompt(Sequence& sequence, int64_t count);
  bool compute();
  void account();
  void pick_rows(std::span<Row> rows);
  void pick_row(Row& row) const;
  void handle(Row& row);
  void take_token(Sequence& sequence, Row& row);
  void fork(Sequence& sequence, std::span<const float> logits);
  std::shared_ptr<const SequenceSnapshot> snapshot_of(const Sequence& sequence,
                                                      std::span<const float> logits);

  // Ends a sequence, with a snapshot where one is wanted and can be had; `logits` of its last
  // token, if they are at hand.
  void end(Sequence& sequence, Finish finish, std::span<const float> logits = {});
  void finish(Sequence& sequence, Finish finish);
  void sweep();
  void tell(Job& job, const std::function<void(Sink&)>& call);
  template <class Body>
  void for_each_sequence(const Body& body);

  const EngineModel& model_;
  Executor& executor_;
  PrefillPace pace_;
  const int64_t max_swapped_, time_slice_;
  const std::function<void(const StepReport&)> on_step_;
  std::vector<int64_t> free_slots_;
  std::vector<SequencePtr> running_;  // with a slot
  std::vector<SequencePtr> waiting_;  // without
  int64_t next_order_ = 0;
  size_t first_prompt_ = 0;           // whose turn it is, when there are more prompts than budget
  std::vector<RequestId> to_cancel_;  // their sinks threw
  EngineStats stats_;

  // Of the step in progress.
  std::vector<Segment> segments_;
  std::vector<int64_t> to_zero_;  // slots of sequences that begin
  std::vector<int64_t> logit_rows_;
  std::vector<Row> rows_;
  std::vector<float> logits_;
  std::vector<std::pair<Sequence*, int64_t>> fed_;  // by segment: whose, and how many tokens
  int64_t num_rows_ = 0;
};

}  // namespace laplace
