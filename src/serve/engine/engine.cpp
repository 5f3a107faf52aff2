// The engine's threads: see engine.h.
#include "serve/engine/engine.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/log.h"
#include "serve/engine/check_request.h"
#include "serve/engine/cpu/thread_pool.h"
#include "serve/engine/scheduler.h"

namespace laplace {

// One scheduler with its executor and thread, and a letter box.
struct Engine::Replica {
  Replica(const EngineModel& model, std::unique_ptr<Executor> its_executor,
          const EngineOptions& options)
      : executor(std::move(its_executor)), scheduler(model, *executor, options) {
    stats = scheduler.stats();
  }

  void run();
  // Takes what came; false when the thread shall end.
  bool take_mail(bool wait);
  int64_t load() const { return stats.running + stats.waiting + stats.swapped; }

  std::unique_ptr<Executor> executor;
  Scheduler scheduler;  // of the thread
  std::thread thread;

  std::mutex mutex;
  std::condition_variable news;
  std::vector<std::shared_ptr<Job>> jobs;  // new ones; counted in stats.waiting already
  std::vector<RequestId> cancels;
  EngineStats stats;
  bool stopping = false;
};

struct Engine::Impl {
  EngineModel model;
  EngineOptions options;
  std::vector<std::unique_ptr<Replica>> replicas;
  std::atomic<bool> closed{false};
  std::atomic<int64_t> refused{0};
  std::atomic<uint64_t> submitted{0};
  std::mutex stop_mutex;
  std::mutex submit_mutex;  // choosing a replica and filling its box is one act
};

bool Engine::Replica::take_mail(bool wait) {
  std::vector<std::shared_ptr<Job>> new_jobs;
  std::vector<RequestId> new_cancels;
  {
    std::unique_lock lock(mutex);
    const auto something = [&] { return stopping || !jobs.empty() || !cancels.empty(); };
    if (wait && !something()) {
      executor->steps(false);
      news.wait(lock, something);
    }
    if (stopping) return false;
    new_jobs.swap(jobs);
    new_cancels.swap(cancels);
  }
  executor->steps(true);
  for (auto& job : new_jobs) scheduler.add(std::move(job));
  for (const RequestId id : new_cancels) scheduler.cancel(id);
  return true;
}

void Engine::Replica::run() {
  flush_denormals();
  executor->own_thread();
  while (take_mail(!scheduler.busy())) {
    scheduler.step();
    scheduler.count_states();
    const std::lock_guard lock(mutex);
    stats = scheduler.stats();
    for (const auto& job : jobs) stats.waiting += job->request.n;
  }
  executor->steps(false);
  {
    const std::lock_guard lock(mutex);
    for (auto& job : jobs) scheduler.add(std::move(job));
    jobs.clear();
  }
  scheduler.cancel_all(FinishReason::kCancelled);
  scheduler.count_states();
  const std::lock_guard lock(mutex);
  stats = scheduler.stats();
}

Engine::Engine(EngineModel model, std::vector<std::unique_ptr<Executor>> executors,
               const EngineOptions& options)
    : impl_(std::make_unique<Impl>()) {
  impl_->model = std::move(model);
  impl_->options = options;
  for (auto& executor : executors) {
    impl_->replicas.push_back(
        std::make_unique<Replica>(impl_->model, std::move(executor), options));
  }
  for (auto& replica : impl_->replicas) {
    replica->thread = std::thread([&replica = *replica] { replica.run(); });
  }
}

Engine::~Engine() { stop(); }

// Who finds a free slot does not wait.
int64_t Engine::most_sequences() const { return impl_->options.max_waiting + slots(); }

RequestId Engine::submit(Request request, std::shared_ptr<Sink> sink) {
  check_request(impl_->model, request);
  if (request.n > most_sequences()) {
    fail_input("n is ", request.n, ", but at most ", most_sequences(),
               " sequences may run and wait; ask for fewer");
  }
  const auto refuse = [&](Refused::Reason reason, const std::string& why) {
    ++impl_->refused;
    throw Refused(reason, why);
  };
  const std::lock_guard submit_lock(impl_->submit_mutex);
  if (impl_->closed) refuse(Refused::Reason::kStopping, "the engine is stopping; try another one");
  Replica* chosen = nullptr;
  int64_t least = 0, waiting = 0;
  for (auto& replica : impl_->replicas) {
    const std::lock_guard lock(replica->mutex);
    const int64_t load = replica->load();
    waiting += replica->stats.waiting;
    if (chosen == nullptr || load < least) chosen = replica.get(), least = load;
  }
  const EngineStats now = stats();
  if (now.running + now.swapped + waiting + request.n > most_sequences()) {
    refuse(Refused::Reason::kQueueFull,
           cat(waiting, " sequences wait for a slot already; try again later"));
  }
  auto job = std::make_shared<Job>();
  job->id = ++impl_->submitted;
  job->request = std::move(request);
  job->sink = std::move(sink);
  const RequestId id = job->id;
  {
    const std::lock_guard lock(chosen->mutex);
    chosen->stats.waiting += job->request.n;
    chosen->jobs.push_back(std::move(job));
  }
  chosen->news.notify_one();
  return id;
}

void Engine::cancel(RequestId id) {
  for (auto& replica : impl_->replicas) {
    {
      const std::lock_guard lock(replica->mutex);
      replica->cancels.push_back(id);
    }
    replica->news.notify_one();
  }
}

bool Engine::drain(std::chrono::milliseconds timeout) {
  {
    const std::lock_guard lock(impl_->submit_mutex);
    impl_->closed = true;
  }
  const auto end = Clock::now() + timeout;
  const auto idle = [&] {
    return std::ranges::all_of(impl_->replicas, [](const auto& replica) {
      const std::lock_guard lock(replica->mutex);
      return replica->load() == 0 && replica->jobs.empty();
    });
  };
  while (!idle()) {
    if (Clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

void Engine::stop() {
  {
    const std::lock_guard lock(impl_->submit_mutex);
    impl_->closed = true;
  }
  const std::lock_guard lock(impl_->stop_mutex);
  for (auto& replica : impl_->replicas) {
    {
      const std::lock_guard replica_lock(replica->mutex);
      replica->stopping = true;
    }
    replica->news.notify_one();
  }
  for (auto& replica : impl_->replicas) {
    if (replica->thread.joinable()) replica->thread.join();
  }
}

const EngineModel& Engine::model() const { return impl_->model; }

EngineStats Engine::stats() const {
  EngineStats sum;
  for (auto& replica : impl_->replicas) {
    const std::lock_guard lock(replica->mutex);
    const EngineStats& s = replica->stats;
    sum.running += s.running, sum.waiting += s.waiting, sum.swapped += s.swapped;
    sum.slots_used += s.slots_used, sum.slots_total += s.slots_total;
    sum.steps += s.steps;
    sum.prompt_tokens += s.prompt_tokens, sum.generated_tokens += s.generated_tokens;
    sum.swaps_out += s.swaps_out, sum.swaps_in += s.swaps_in;
    sum.finished += s.finished, sum.cancelled += s.cancelled, sum.failed += s.failed;
    sum.last_decode_rows += s.last_decode_rows, sum.last_prefill_rows += s.last_prefill_rows;
    sum.decode_rows += s.decode_rows, sum.prefill_rows += s.prefill_rows;
    sum.step_seconds += s.step_seconds;
  }
  sum.refused = impl_->refused;
  return sum;
}

int64_t Engine::slots() const {
  int64_t sum = 0;
  for (auto& replica : impl_->replicas) sum += replica->executor->slots();
  return sum;
}

int64_t Engine::bytes_per_sequence() const {
  return impl_->replicas.front()->executor->bytes_per_sequence();
}

std::string Engine::description() const {
  const std::string one = impl_->replicas.front()->executor->description();
  const size_t count = impl_->replicas.size();
  return count == 1 ? one : cat(count, " replicas of ", one);
}

EngineDtype parse_engine_dtype(std::string_view name) {
  for (const auto dtype : {EngineDtype::kAuto, EngineDtype::kFloat32, EngineDtype::kBfloat16,
                           EngineDtype::kInt8, EngineDtype::kInt4}) {
    if (name == engine_dtype_name(dtype)) return dtype;
  }
  fail_input("the dtype is ", quoted(name), ", but must be auto, float32, bfloat16, int8 or int4");
}

std::string_view engine_dtype_name(EngineDtype dtype) {
  switch (dtype) {
    case EngineDtype::kAuto:
      return "auto";
    case EngineDtype::kFloat32:
      return "float32";
    case EngineDtype::kBfloat16:
      return "bfloat16";
    case EngineDtype::kInt8:
      return "int8";
    case EngineDtype::kInt4:
      break;
  }
  return "int4";
}

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kDeadline:
      return "deadline";
    case FinishReason::kError:
      break;
  }
  return "error";
}

}  // namespace laplace
