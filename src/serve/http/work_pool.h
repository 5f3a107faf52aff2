// A few threads for what may take long or block: parsing, tokenizing, the state store. Queued work
// is done before the destructor returns; what waits for its time is done at once then.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace laplace {

// Thread-safe.
class WorkPool {
 public:
  explicit WorkPool(int threads);
  ~WorkPool();
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  // `work` must not throw.
  void post(std::function<void()> work);
  void post_after(std::chrono::milliseconds delay, std::function<void()> work);

 private:
  using Clock = std::chrono::steady_clock;
  void run();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  std::multimap<Clock::time_point, std::function<void()>> timed_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace laplace
