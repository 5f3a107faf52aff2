// See threads.h.
#include "base/threads.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace laplace {

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void parallel_for(int64_t count, int threads, const std::function<void(int64_t)>& body) {
  std::atomic<int64_t> next{0};
  std::exception_ptr first_error;
  int64_t first_failed = count;
  std::mutex mutex;
  const auto work = [&] {
    int64_t i = 0;
    try {
      for (i = next++; i < count; i = next++) body(i);
    } catch (...) {
      next = count;  // those before i have begun, and will end
      const std::lock_guard lock(mutex);
      if (i < first_failed) first_error = std::current_exception();
      first_failed = std::min(first_failed, i);
    }
  };
  std::vector<std::jthread> helpers;
  const int64_t wanted = std::min<int64_t>(threads, count);
  for (int64_t i = 1; i < wanted; ++i) helpers.emplace_back(work);
  work();
  helpers.clear();  // joins
  if (first_error) std::rethrow_exception(first_error);
}

}  // namespace laplace
