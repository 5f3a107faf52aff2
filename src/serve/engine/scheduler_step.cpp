// One step of the scheduler: what is fed, and what comes of it. See scheduler.h.
#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/progress.h"
#include "serve/engine/scheduler.h"

namespace laplace {

namespace {

// Prompt tokens of one sequence in a step, when the logits of all of them are wanted: those take
// V floats each.
constexpr int64_t kScoredTokens = 64;

bool is_stop_token(const EngineModel& model, const Request& request, TokenId id) {
  if (id == model.end_of_text && !request.ignore_end_of_text) return true;
  return std::ranges::find(request.stop_token_ids, id) != request.stop_token_ids.end();
}

}  // namespace

void Scheduler::step() {
  const Stopwatch watch;
  expire();
  admit();
  sweep();  // who ended with its first pick
  plan();
  if (segments_.empty()) return;
  const auto ran = int64_t(running_.size());
  if (compute()) {
    account();
    pick_rows(rows_);
    for (Row& row : rows_) handle(row);
  }
  sweep();
  ++stats_.steps;
  const double seconds = watch.seconds();
  stats_.step_seconds += seconds;
  pace_.observe(stats_.last_decode_rows, stats_.last_prefill_rows, seconds);
  if (on_step_) {
    on_step_({seconds, stats_.last_decode_rows, stats_.last_prefill_rows, ran,
              int64_t(waiting_.size())});
  }
}

void Scheduler::plan() {
  segments_.clear();
  to_zero_.clear();
  logit_rows_.clear();
  rows_.clear();
  fed_.clear();
  num_rows_ = 0;
  for (const SequencePtr& sequence : running_) {
    if (sequence->pending < 0) continue;
    segments_.push_back({sequence->slot, {&sequence->pending, 1}});
    fed_.emplace_back(sequence.get(), 1);
    logit_rows_.push_back(num_rows_++);
    rows_.push_back({.sequence = sequence.get(), .at_end = true});
  }
  stats_.last_decode_rows = num_rows_;
  plan_prompts();
  stats_.last_prefill_rows = num_rows_ - stats_.last_decode_rows;
  stats_.decode_rows += stats_.last_decode_rows;
  stats_.prefill_rows += stats_.last_prefill_rows;
}

// Up to the next place where something is asked for.
int64_t Scheduler::wanted_tokens(const Sequence& sequence) const {
  const Request& request = sequence.request();
  auto count = int64_t(request.prompt.size() - sequence.fed);
  if (sequence.next_snapshot < request.snapshot_at.size()) {
    const int64_t place = request.snapshot_at[sequence.next_snapshot];
    count = std::min(count, place - int64_t(sequence.fed));
  }
  return request.prompt_log_probs ? std::min(count, kScoredTokens) : count;
}

// Equal shares; what short ones leave goes to the longer ones. With more prompts than tokens they
// take turns.
void Scheduler::plan_prompts() {
  std::vector<Sequence*> prompts;
  for (const SequencePtr& sequence : running_) {
    if (!sequence->prompt_done()) prompts.push_back(sequence.get());
  }
  if (prompts.empty()) return;
  int64_t left = pace_.budget(stats_.last_decode_rows, int64_t(prompts.size()));
  if (int64_t(prompts.size()) > left) {
    std::ranges::rotate(prompts, prompts.begin() + int64_t(first_prompt_ % prompts.size()));
    first_prompt_ += size_t(left);
    prompts.resize(size_t(left));
  }
  std::ranges::stable_sort(prompts, {}, [&](Sequence* s) { return wanted_tokens(*s); });
  for (size_t i = 0; i < prompts.size(); ++i) {
    const int64_t share = left / int64_t(prompts.size() - i);
    const int64_t count = std::min(share, wanted_tokens(*prompts[i]));
    feed_prompt(*prompts[i], count);
    left -= count;
  }
}

void Scheduler::feed_prompt(Sequence& sequence, int64_t count) {
  const Request& request = sequence.request();
  const auto begin = int64_t(sequence.fed), end = begin + count;
  const auto size = int64_t(request.prompt.size());
  if (std::exchange(sequence.fresh, false)) to_zero_.push_back(sequence.slot);
  segments_.push_back(
      {sequence.slot, std::span(request.prompt).subspan(sequence.fed, size_t(count))});
  fed_.emplace_back(&sequence, count);
  const bool at_snapshot = sequence.next_snapshot < request.snapshot_at.size() &&
                           request.snapshot_at[sequence.next_snapshot] == end;
  for (int64_t token = begin; token < end; ++token) {
    Row row{.sequence = &sequence};
    const bool last = token + 1 == end;
    row.at_end = token + 1 == size;
    if (request.prompt_log_probs && !row.at_end) row.prompt_token = token + 1;
    if (last && at_snapshot) row.snapshot_offset = end;
    if (row.at_end || row.prompt_token >= 0 || row.snapshot_offset >= 0) {
      logit_rows_.push_back(num_rows_ + token - begin);
      rows_.push_back(row);
    }
  }
  num_rows_ += count;
}

// False when the step failed; those it held have ended then.
bool Scheduler::compute() {
  const auto V = size_t(model_.config.vocab_size);
  try {
    if (logits_.size() < rows_.size() * V) logits_.resize(rows_.size() * V);
    // Only now: many that come at once would otherwise wait for each other's pages.
    executor_.parallel(int64_t(to_zero_.size()),
                       [&](int64_t i) { executor_.zero(to_zero_[size_t(i)]); });
    executor_.step(segments_, logit_rows_, logits_.data());
  } catch (const std::exception& error) {
    for (const auto& [sequence, count] : fed_) {
      finish(*sequence, {.reason = FinishReason::kError, .error = error.what()});
    }
    return false;
  }
  for (size_t i = 0; i < rows_.size(); ++i) rows_[i].logits = std::span(logits_).subspan(i * V, V);
  return true;
}

void Scheduler::account() {
  for (const auto& [sequence, count] : fed_) {
    sequence->position += count;
    if (sequence->pending >= 0) {
      sequence->counts->add_output(sequence->pending);
      sequence->pending = -1;
      continue;
    }
    const auto& prompt = sequence->request().prompt;
    for (int64_t i = 0; i < count; ++i) sequence->counts->add_prompt(prompt[sequence->fed++]);
    stats_.prompt_tokens += count;
  }
}

void Scheduler::pick_rows(std::span<Row> rows) {
  executor_.parallel(int64_t(rows.size()), [&](int64_t i) { pick_row(rows[size_t(i)]); });
}

// Runs on the executor's threads: touches nothing but its row.
void Scheduler::pick_row(Row& row) const {
  const Sequence& sequence = *row.sequence;
  const Request& request = sequence.request();
  if (row.prompt_token >= 0) {
    const TokenId id = request.prompt[size_t(row.prompt_token)];
    row.result = result_of(row.logits, id, std::max(request.top_log_probs, 0));
  }
  if (!row.at_end || sequence.ending || sequence.generated >= request.max_tokens) return;
  const PickRules rules{.request = &request,
                        .seed = request.sampling.seed + uint64_t(sequence.index),
                        .num_ids = model_.num_ids(),
                        .end_of_text = model_.end_of_text};
  try {
    row.picked =
        pick_token(row.logits, rules, *sequence.counts, sequence.generated, sequence.position);
    row.result = result_of(row.logits, row.picked, request.top_log_probs);
  } catch (const std::exception& error) {
    row.error = error.what();
  }
}

void Scheduler::handle(Row& row) {
  Sequence& sequence = *row.sequence;
  if (sequence.done) return;
  Job& job = *sequence.job;
  if (row.snapshot_offset >= 0) {
    ++sequence.next_snapshot;
    const auto snapshot = snapshot_of(sequence, row.logits);
    tell(job, [&](Sink& sink) { sink.on_snapshot(0, row.snapshot_offset, snapshot); });
  }
  if (row.prompt_token >= 0) tell(job, [&](Sink& sink) { sink.on_prompt({&row.result, 1}); });
  if (!row.at_end) return;
  if (sequence.ending) {
    const auto snapshot = snapshot_of(sequence, row.logits);
    tell(job, [&](Sink& sink) { sink.on_snapshot(sequence.index, -1, snapshot); });
    finish(sequence, *sequence.ending);
    return;
  }
  if (!job.forked && job.request.n > 1) fork(sequence, row.logits);
  job.forked = true;
  if (!row.error.empty()) {
    finish(sequence, {.reason = FinishReason::kError, .error = row.error});
    return;
  }
  take_token(sequence, row);
}

void Scheduler::take_token(Sequence& sequence, Row& row) {
  const Request& request = sequence.request();
  if (sequence.generated >= request.max_tokens) {
    end(sequence, {.reason = FinishReason::kLength}, row.logits);
    return;
  }
  if (is_stop_token(model_, request, row.picked)) {
    end(sequence, {.reason = FinishReason::kStop, .stop_token = row.picked}, row.logits);
    return;
  }
  ++sequence.generated;
  ++sequence.since_admitted;
  ++stats_.generated_tokens;
  std::string text;
  if (sequence.text) {
    const bool early = sequence.generated < request.min_tokens;
    text = early ? sequence.text->push_early(row.picked) : sequence.text->push(row.picked);
  }
  sequence.pending = row.picked;
  tell(*sequence.job, [&](Sink& sink) { sink.on_token(sequence.index, row.result, text); });
  if (sequence.text && sequence.text->stopped()) {
    end(sequence, {.reason = FinishReason::kStop, .stop = sequence.text->matched()});
  } else if (sequence.generated >= request.max_tokens) {
    end(sequence, {.reason = FinishReason::kLength});
  }
}

}  // namespace laplace
