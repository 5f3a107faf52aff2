// See bench_load.h.
#include "cli/bench_load.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "base/error.h"
#include "base/process.h"

namespace laplace::cli {

namespace {

using Times = std::vector<Clock::time_point>;

double seconds_between(Clock::time_point a, Clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

// What has ended, for all clients of a load.
struct Finished {
  std::mutex mutex;
  std::condition_variable changed;
  int64_t count = 0;
  std::string error;
};

class Client : public Sink {
 public:
  // Room for so many tokens is touched now, so that it does not look like the engine's later.
  Client(Finished& finished, int64_t tokens) : times(size_t(tokens)), finished_(finished) {
    times.clear();
  }
  void on_token(int, const TokenResult&, std::string_view) override {
    times.push_back(Clock::now());
    received.store(int64_t(times.size()), std::memory_order_relaxed);
  }
  void on_snapshot(int, int64_t, std::shared_ptr<const SequenceSnapshot> state) override {
    snapshot = std::move(state);
  }
  void on_finish(int, const Finish& finish) override {
    const std::lock_guard lock(finished_.mutex);
    ++finished_.count;
    if (finish.reason == FinishReason::kError) finished_.error = finish.error;
    finished_.changed.notify_one();
  }

  Clock::time_point submitted;
  Times times;  // to be read when it has finished
  std::atomic<int64_t> received{0};
  std::shared_ptr<const SequenceSnapshot> snapshot;

 private:
  Finished& finished_;
};

// False when `count` had not ended after `most`.
bool wait_for(Finished& finished, int64_t count, std::chrono::milliseconds most) {
  std::unique_lock lock(finished.mutex);
  return finished.changed.wait_for(lock, most, [&] { return finished.count >= count; });
}

Request make_request(const EngineModel& model, const Load& load, int64_t number) {
  std::mt19937_64 random(load.seed + uint64_t(number));
  Request request;
  request.from = load.from;
  for (int64_t i = 0; i < (load.from ? 0 : load.prompt_tokens); ++i) {
    request.prompt.push_back(TokenId(random() % uint64_t(model.config.vocab_size)));
  }
  request.max_tokens = load.output_tokens;
  request.ignore_end_of_text = true;
  request.sampling.temperature = load.temperature;
  request.sampling.seed = load.seed + uint64_t(number);
  return request;
}

void add_times(const std::vector<std::shared_ptr<Client>>& clients, LoadResult* out) {
  Clock::time_point all_started = Clock::time_point::min();
  Clock::time_point first_ended = Clock::time_point::max(), last = Clock::time_point::min();
  for (const auto& client : clients) {
    const Times& times = client->times;
    if (times.empty()) continue;
    out->first_token.push_back(seconds_between(client->submitted, times.front()));
    for (size_t i = 1; i < times.size(); ++i) {
      out->inter_token.push_back(seconds_between(times[i - 1], times[i]));
    }
    out->generated += int64_t(times.size());
    all_started = std::max(all_started, times.front());
    first_ended = std::min(first_ended, times.back());
    last = std::max(last, times.back());
  }
  out->seconds = seconds_between(clients.front()->submitted, last);
  if (first_ended <= all_started) {
    out->steady_seconds = out->seconds;
    out->steady_tokens = out->generated;
    return;
  }
  out->steady_seconds = seconds_between(all_started, first_ended);
  for (const auto& client : clients) {
    out->steady_tokens += std::ranges::count_if(client->times, [&](Clock::time_point time) {
      return time > all_started && time <= first_ended;
    });
  }
}

}  // namespace

LoadResult run_load(Engine& engine, const Load& load) {
  LoadResult out;
  out.before = engine.stats();
  Finished finished;
  std::vector<std::shared_ptr<Client>> clients;
  std::vector<Request> requests;  // made before the first is sent: they shall start together
  for (int64_t i = 0; i < load.requests; ++i) {
    requests.push_back(make_request(engine.model(), load, i));
  }
  std::mt19937_64 random(load.seed);
  std::gamma_distribution<double> gap(load.burstiness,
                                      load.rate > 0 ? 1 / (load.rate * load.burstiness) : 0);
  auto next = Clock::now();
  for (Request& request : requests) {
    clients.push_back(std::make_shared<Client>(finished, load.output_tokens));
    if (load.rate > 0) {
      std::this_thread::sleep_until(next);
      next +=
          std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(gap(random)));
    }
    clients.back()->submitted = Clock::now();
    engine.submit(std::move(request), clients.back());
  }
  const int64_t tenth = load.requests * load.output_tokens / 10;
  while (!wait_for(finished, load.requests, std::chrono::milliseconds(200))) {
    if (engine.stats().generated_tokens - out.before.generated_tokens < tenth) continue;
    const int64_t resident = resident_bytes();
    if (out.resident_early == 0) out.resident_early = resident;
    out.resident_later = std::max(out.resident_later, resident);
  }
  if (!finished.error.empty()) fail(finished.error);
  // The last of them ends within a step: the next load is not to find that step's end among its
  // own.
  out.after = engine.stats();
  while (out.after.running + out.after.waiting + out.after.swapped > 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    out.after = engine.stats();
  }
  add_times(clients, &out);
  return out;
}

std::shared_ptr<const SequenceSnapshot> state_after(Engine& engine, int64_t tokens, uint64_t seed) {
  Finished finished;
  const auto client = std::make_shared<Client>(finished, 0);
  Request request = make_request(engine.model(), {.prompt_tokens = tokens, .seed = seed}, 0);
  request.max_tokens = 0;
  request.snapshot_at = {tokens};
  engine.submit(std::move(request), client);
  while (!wait_for(finished, 1, std::chrono::seconds(1))) {
  }
  if (!finished.error.empty()) fail(finished.error);
  return client->snapshot;
}

BesideResult run_beside(Engine& engine, const Load& load, int64_t decoding) {
  constexpr int64_t kForever = int64_t{1} << 60, kRoom = 1 << 16;
  constexpr auto kSoon = std::chrono::milliseconds(5);
  BesideResult out;
  Finished finished, prompt_finished;
  std::vector<std::shared_ptr<Client>> clients;
  std::vector<RequestId> ids;
  for (int64_t i = 0; i < decoding; ++i) {
    Load one = load;
    one.prompt_tokens = 16;
    one.output_tokens = kForever;
    clients.push_back(std::make_shared<Client>(finished, kRoom));
    ids.push_back(engine.submit(make_request(engine.model(), one, i), clients.back()));
  }
  const auto have_enough = [&] {
    return std::ranges::all_of(
        clients, [&](const auto& client) { return client->received >= load.output_tokens; });
  };
  while (!have_enough()) std::this_thread::sleep_for(kSoon);
  const auto prompt = std::make_shared<Client>(prompt_finished, 1);
  Load one = load;
  one.output_tokens = 1;
  Request request = make_request(engine.model(), one, decoding);
  const auto begin = Clock::now();
  engine.submit(std::move(request), prompt);
  while (!wait_for(prompt_finished, 1, std::chrono::seconds(1))) {
  }
  const auto end = Clock::now();
  for (const RequestId id : ids) engine.cancel(id);
  while (!wait_for(finished, decoding, std::chrono::seconds(1))) {
  }
  out.seconds = seconds_between(begin, end);
  for (const auto& client : clients) {
    for (size_t i = 1; i < client->times.size(); ++i) {
      const auto time = client->times[i];
      if (time > end) break;
      (time <= begin ? out.before : out.during)
          .push_back(seconds_between(client->times[i - 1], time));
    }
  }
  return out;
}

double percentile(std::vector<double> values, double p) {
  if (values.empty()) return 0;
  const auto at =
      size_t(std::min(double(values.size() - 1), std::floor(p * double(values.size()))));
  std::ranges::nth_element(values, values.begin() + int64_t(at));
  return values[at];
}

}  // namespace laplace::cli
