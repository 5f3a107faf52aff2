// See run_request.h.
#include "cli/run_request.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>

#include "base/error.h"
#include "base/progress.h"

namespace laplace::cli {

namespace {

struct Event {
  TokenResult token = {};
  std::string text = {};
  bool of_prompt = false;
};

// Passes events from the engine's thread to the caller's.
class Queue : public Sink {
 public:
  void on_prompt(std::span<const TokenResult> tokens) override {
    const std::lock_guard lock(mutex_);
    for (const TokenResult& token : tokens) events_.push_back({.token = token, .of_prompt = true});
    news_.notify_one();
  }
  void on_token(int, const TokenResult& token, std::string_view text) override {
    const std::lock_guard lock(mutex_);
    last_token_ = watch_.seconds();
    if (first_token_ < 0) first_token_ = last_token_;
    events_.push_back({.token = token, .text = std::string(text)});
    news_.notify_one();
  }
  void on_snapshot(int, int64_t, std::shared_ptr<const SequenceSnapshot> snapshot) override {
    const std::lock_guard lock(mutex_);
    state_ = std::move(snapshot);
  }
  void on_finish(int, const Finish& finish) override {
    const std::lock_guard lock(mutex_);
    finish_ = finish;
    news_.notify_one();
  }

  // All events that have come, after a tenth of a second at most; true when none will follow.
  bool wait(std::deque<Event>* events) {
    std::unique_lock lock(mutex_);
    news_.wait_for(lock, std::chrono::milliseconds(100),
                   [&] { return !events_.empty() || finish_.has_value(); });
    events->swap(events_);
    return finish_.has_value();
  }
  RunResult result() {
    const std::lock_guard lock(mutex_);
    return {*finish_, first_token_, last_token_, state_};
  }

 private:
  std::mutex mutex_;
  std::condition_variable news_;
  std::deque<Event> events_;
  std::optional<Finish> finish_;
  Stopwatch watch_;
  double first_token_ = -1, last_token_ = -1;
  std::shared_ptr<const SequenceSnapshot> state_;
};

}  // namespace

RunResult run_request(Engine& engine, Request request, const RunEvents& events) {
  const auto queue = std::make_shared<Queue>();
  const RequestId id = engine.submit(std::move(request), queue);
  bool cancelled = false;
  for (bool over = false; !over;) {
    std::deque<Event> arrived;
    over = queue->wait(&arrived);
    for (const Event& event : arrived) {
      if (event.of_prompt) {
        if (events.prompt) events.prompt(event.token);
      } else if (events.token) {
        events.token(event.token, event.text);
      }
    }
    if (!cancelled && events.interrupted && events.interrupted()) {
      engine.cancel(id);
      cancelled = true;
    }
  }
  RunResult result = queue->result();
  if (result.finish.reason == FinishReason::kError) fail(result.finish.error);
  return result;
}

}  // namespace laplace::cli
