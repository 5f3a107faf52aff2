// See work_pool.h.
#include "serve/http/work_pool.h"

#include <utility>

namespace laplace {

WorkPool::WorkPool(int threads) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
}

WorkPool::~WorkPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkPool::post(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
  }
  wake_.notify_one();
}

void WorkPool::post_after(std::chrono::milliseconds delay, std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    timed_.emplace(Clock::now() + delay, std::move(work));
  }
  wake_.notify_one();
}

void WorkPool::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    while (!timed_.empty() && (stopping_ || timed_.begin()->first <= Clock::now())) {
      queue_.push_back(std::move(timed_.begin()->second));
      timed_.erase(timed_.begin());
    }
    if (!queue_.empty()) {
      const auto work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      work();
      lock.lock();
    } else if (stopping_) {
      return;
    } else if (timed_.empty()) {
      wake_.wait(lock);
    } else {
      // A copy: another thread may take the entry meanwhile.
      const Clock::time_point next = timed_.begin()->first;
      wake_.wait_until(lock, next);
    }
  }
}

}  // namespace laplace
