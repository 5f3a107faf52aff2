// See scheduler.h. This file: who has a slot, and how sequences end; steps are in
// scheduler_step.cpp.
#include "serve/engine/scheduler.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace laplace {

namespace {

constexpr int64_t kWarmRows = 16;  // of logits, touched before the first step

std::vector<TokenCount> sparse(const TokenCounts& counts) {
  std::vector<TokenCount> out;
  out.reserve(counts.seen().size());
  for (const int32_t id : counts.seen()) {
    out.push_back({id, counts.in_prompt(id), counts.in_output(id)});
  }
  return out;
}

void restore(const std::vector<TokenCount>& from, TokenCounts* counts) {
  for (const TokenCount& count : from) {
    if (count.in_prompt) counts->add_prompt(count.id);
    counts->add_output(count.id, count.in_output);
  }
}

}  // namespace

Scheduler::Scheduler(const EngineModel& model, Executor& executor, const EngineOptions& options)
    : model_(model),
      executor_(executor),
      pace_(std::max<int64_t>(options.prefill_budget, 1), options.prefill_stretch),
      max_swapped_(std::max<int64_t>(4, executor.slots() / 8)),
      time_slice_(options.time_slice),
      on_step_(options.on_step),
      free_slots_(size_t(executor.slots())) {
  std::iota(free_slots_.rbegin(), free_slots_.rend(), 0);  // the first slot is taken first
  stats_.slots_total = executor.slots();
  // Room for every slot's logits: a wider batch than any before moves nothing.
  logits_.reserve(size_t(executor.slots() * model.config.vocab_size));
  logits_.resize(size_t(std::min(executor.slots(), kWarmRows) * model.config.vocab_size));
}

Scheduler::~Scheduler() = default;

void Scheduler::add(std::shared_ptr<Job> job) {
  auto sequence = std::make_unique<Sequence>(job, 0);
  const Request& request = sequence->request();
  sequence->order = next_order_++;
  sequence->from = request.from;
  if (request.from) sequence->position = request.from->position;
  if (model_.tokenizer) sequence->text.emplace(*model_.tokenizer, request.stops);
  waiting_.push_back(std::move(sequence));
}

template <class Body>
void Scheduler::for_each_sequence(const Body& body) {
  for (const auto* list : {&running_, &waiting_}) {
    for (const SequencePtr& sequence : *list) {
      if (!sequence->done) body(*sequence);
    }
  }
}

void Scheduler::cancel(RequestId id) {
  for_each_sequence([&](Sequence& sequence) {
    if (sequence.job->id == id) end(sequence, {.reason = FinishReason::kCancelled});
  });
  sweep();
}

void Scheduler::cancel_all(FinishReason reason) {
  for_each_sequence([&](Sequence& sequence) { finish(sequence, {.reason = reason}); });
  sweep();
}

void Scheduler::expire() {
  const auto now = Clock::now();
  for_each_sequence([&](Sequence& sequence) {
    if (sequence.request().deadline && *sequence.request().deadline <= now) {
      end(sequence, {.reason = FinishReason::kDeadline});
    }
  });
  for (const RequestId id : to_cancel_) cancel(id);
  to_cancel_.clear();
  sweep();
}

void Scheduler::admit() {
  std::ranges::sort(waiting_, [](const SequencePtr& a, const SequencePtr& b) {
    return goes_before(*b, *a);  // who goes first stands at the back
  });
  while (!waiting_.empty()) {
    if (free_slots_.empty() && !make_room(*waiting_.back())) return;
    SequencePtr sequence = std::move(waiting_.back());
    waiting_.pop_back();
    enter(std::move(sequence));
  }
}

// Swaps out who has the smallest priority below that of `wanted`, the last that came among them; or
// who has had its time.
bool Scheduler::make_room(const Sequence& wanted) {
  const auto swapped = std::ranges::count_if(
      waiting_, [](const SequencePtr& sequence) { return !sequence->swapped.empty(); });
  if (swapped >= max_swapped_ + (wanted.swapped.empty() ? 0 : 1)) return false;
  size_t victim = running_.size();
  for (size_t i = 0; i < running_.size(); ++i) {
    const Sequence& candidate = *running_[i];
    if (candidate.ending || candidate.done) continue;
    const bool outranked = candidate.priority() < wanted.priority();
    const bool had_its_time = time_slice_ > 0 && candidate.priority() == wanted.priority() &&
                              candidate.since_admitted >= time_slice_;
    if (!outranked && !had_its_time) continue;
    if (victim == running_.size() || goes_before(*running_[victim], candidate)) victim = i;
  }
  if (victim == running_.size()) return false;
  SequencePtr sequence = std::move(running_[victim]);
  running_.erase(running_.begin() + int64_t(victim));
  swap_out(std::move(sequence));
  return true;
}

void Scheduler::swap_out(SequencePtr sequence) {
  if (!std::exchange(sequence->fresh, false)) {
    sequence->swapped.resize(size_t(model_.config.state_bytes()) / sizeof(float));
    executor_.save(sequence->slot, sequence->swapped);
  }
  give_slot(*sequence);
  // Among its equals it stands last now, so that slots go around.
  sequence->order = next_order_++;
  ++stats_.swaps_out;
  const auto place = std::ranges::find_if(
      waiting_, [&](const SequencePtr& other) { return goes_before(*other, *sequence); });
  waiting_.insert(place, std::move(sequence));
}

void Scheduler::give_slot(Sequence& sequence) {
  executor_.release(sequence.slot);
  free_slots_.push_back(sequence.slot);
  sequence.slot = -1;
}

void Scheduler::enter(SequencePtr sequence) {
  Sequence& entering = *sequence;
  entering.slot = free_slots_.back();
  free_slots_.pop_back();
  const bool first_slot = !std::exchange(entering.had_slot, true);
  entering.since_admitted = 0;
  running_.push_back(std::move(sequence));
  if (!entering.counts) {
    entering.counts.emplace(model_.config.vocab_size);
    if (entering.from) restore(entering.from->counts, &*entering.counts);
  }
  if (!entering.swapped.empty()) {
    executor_.load(entering.slot, entering.swapped);
    entering.swapped = {};
    ++stats_.swaps_in;
  } else if (entering.from) {
    executor_.load(entering.slot, entering.from->slot);
    pick_first(entering);
    entering.from.reset();
  } else {
    entering.fresh = true;
    if (first_slot && entering.request().prompt_log_probs) {
      const TokenResult first{.id = entering.request().prompt.front()};
      tell(*entering.job, [&](Sink& sink) { sink.on_prompt({&first, 1}); });
    }
  }
}

// A snapshot's logits are those of the last token: they predict the prompt's first token, or give
// the first token that is generated.
void Scheduler::pick_first(Sequence& sequence) {
  Row row;
  row.sequence = &sequence;
  row.logits = sequence.from->logits;
  row.at_end = sequence.prompt_done();
  if (!row.at_end) {
    if (!sequence.request().prompt_log_probs) return;
    row.prompt_token = 0;
  }
  pick_row(row);
  handle(row);
}

std::shared_ptr<const SequenceSnapshot> Scheduler::snapshot_of(const Sequence& sequence,
                                                               std::span<const float> logits) {
  auto snapshot = std::make_shared<SequenceSnapshot>();
  snapshot->slot.resize(size_t(model_.config.state_bytes()) / sizeof(float));
  executor_.save(sequence.slot, snapshot->slot);
  snapshot->logits.assign(logits.begin(), logits.end());
  snapshot->counts = sparse(*sequence.counts);
  snapshot->position = sequence.position;
  return snapshot;
}

// The other n - 1 sequences begin where the prompt ends.
void Scheduler::fork(Sequence& sequence, std::span<const float> logits) {
  const auto snapshot = sequence.from ? sequence.from : snapshot_of(sequence, logits);
  sequence.job->forked = true;
  for (int i = 1; i < sequence.request().n; ++i) {
    auto other = std::make_unique<Sequence>(sequence.job, i);
    other->order = sequence.order;
    other->fed = sequence.fed;
    other->position = sequence.position;
    other->next_snapshot = sequence.next_snapshot;
    other->text = sequence.text;
    other->from = snapshot;
    waiting_.push_back(std::move(other));
  }
}

void Scheduler::tell(Job& job, const std::function<void(Sink&)>& call) {
  if (job.sink_threw) return;
  try {
    call(*job.sink);
  } catch (...) {
    job.sink_threw = true;
    to_cancel_.push_back(job.id);
  }
}

void Scheduler::end(Sequence& sequence, Finish finish_with, std::span<const float> logits) {
  if (sequence.ending) return;  // it is about to
  if (sequence.text) finish_with.text = sequence.text->finish();
  const bool wants_snapshot =
      sequence.request().snapshot_at_end && sequence.slot >= 0 && sequence.prompt_done();
  if (wants_snapshot && sequence.pending >= 0) {
    sequence.ending = std::move(finish_with);  // once the token is fed
    return;
  }
  if (wants_snapshot && !logits.empty()) {
    const auto snapshot = snapshot_of(sequence, logits);
    tell(*sequence.job, [&](Sink& sink) { sink.on_snapshot(sequence.index, -1, snapshot); });
  }
  finish(sequence, std::move(finish_with));
}

void Scheduler::finish(Sequence& sequence, Finish finish) {
  if (sequence.done) return;
  sequence.done = true;
  finish.prompt_tokens = int64_t(sequence.fed);
  finish.cached_tokens = sequence.cached();
  finish.generated_tokens = sequence.generated;
  Job& job = *sequence.job;
  // Before the fork one sequence stands for all n.
  const int count = job.forked || job.request.n == 1 ? 1 : job.request.n;
  for (int i = 0; i < count; ++i) {
    try {
      job.sink->on_finish(sequence.index + i, finish);
    } catch (...) {  // nothing more can be told
      job.sink_threw = true;
    }
    ++stats_.finished;
    if (finish.reason == FinishReason::kCancelled) ++stats_.cancelled;
    if (finish.reason == FinishReason::kError) ++stats_.failed;
  }
}

void Scheduler::sweep() {
  for (auto* list : {&running_, &waiting_}) {
    std::erase_if(*list, [&](const SequencePtr& sequence) {
      if (sequence->done && sequence->slot >= 0) give_slot(*sequence);
      return sequence->done;
    });
  }
}

void Scheduler::count_states() {
  stats_.running = int64_t(running_.size());
  stats_.slots_used = stats_.slots_total - int64_t(free_slots_.size());
  stats_.waiting = stats_.swapped = 0;
  for_each_sequence([&](const Sequence& sequence) {
    const Job& job = *sequence.job;
    if (!job.forked) stats_.waiting += job.request.n - 1;
    if (sequence.slot < 0) ++(sequence.had_slot ? stats_.swapped : stats_.waiting);
  });
}

}  // namespace laplace
