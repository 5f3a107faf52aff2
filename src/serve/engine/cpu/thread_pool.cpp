// See thread_pool.h.
#include "serve/engine/cpu/thread_pool.h"

#include <sched.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <system_error>

#include "base/error.h"

namespace laplace {

namespace {

// gate_ is round * kRound + (kOpen where it can be joined) + the number of helpers inside.
constexpr uint64_t kOpen = 1 << 15, kRound = 1 << 16;

// One turn of a loop that waits for another core. Where cores are fewer than threads the other one
// may not run at all, so the processor is given away after a while.
void spin(int* turns) {
  constexpr int kTurnsBeforeYield = 4000;
  if (++*turns > kTurnsBeforeYield) {
    *turns = 0;
    ::sched_yield();
    return;
  }
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The calling thread. A system that refuses loses some speed and nothing else.
void pin_to(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  ::sched_setaffinity(0, sizeof set, &set);
}

}  // namespace

void flush_denormals() {
#if defined(__x86_64__)
  _mm_setcsr(_mm_getcsr() | 0x8040);  // FTZ and DAZ
#endif
}

std::vector<int> allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> out;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return out;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) out.push_back(core);
  }
  return out;
}

ThreadPool::ThreadPool(int threads, std::vector<int> cores) : cores_(std::move(cores)) {
  try {
    for (int i = 1; i < threads; ++i) helpers_.emplace_back([this, i] { help(i); });
  } catch (const std::system_error& error) {
    end_helpers();
    fail("cannot start ", threads, " threads: ", error.what(), "; give --threads fewer");
  }
}

ThreadPool::~ThreadPool() { end_helpers(); }

void ThreadPool::end_helpers() {
  stop_ = true;
  wake();
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadPool::pin_caller() const {
  if (!cores_.empty()) pin_to(cores_[0]);
}

void ThreadPool::wake() {
  wakes_.fetch_add(1);
  wakes_.notify_all();
}

void ThreadPool::begin() {
  if (!busy_.exchange(true) && !helpers_.empty()) wake();
}

void ThreadPool::end() { busy_ = false; }

void ThreadPool::take_pieces(int thread) {
  while (true) {
    const int64_t first = next_.fetch_add(grain_, std::memory_order_relaxed);
    if (first >= count_) return;
    (*body_)(first, std::min(first + grain_, count_), thread);
  }
}

void ThreadPool::run(int64_t count, int64_t grain, const Body& body) {
  if (helpers_.empty() || count <= grain) {
    if (count > 0) body(0, count, 0);
    return;
  }
  body_ = &body;
  count_ = count;
  grain_ = grain;
  next_.store(0, std::memory_order_relaxed);
  const uint64_t round = gate_.load(std::memory_order_relaxed) / kRound + 1;
  gate_.store(round * kRound + kOpen, std::memory_order_release);
  if (!busy_.load(std::memory_order_relaxed)) wake();
  take_pieces(0);
  gate_.fetch_and(~kOpen, std::memory_order_relaxed);
  int turns = 0;
  while (gate_.load(std::memory_order_acquire) % kOpen != 0) spin(&turns);
}

bool ThreadPool::join_round(int thread, uint64_t* seen) {
  uint64_t gate = gate_.load(std::memory_order_acquire);
  const auto joinable = [&] { return (gate & kOpen) != 0 && gate / kRound != *seen; };
  if (!joinable()) return false;
  if (!gate_.compare_exchange_strong(gate, gate + 1, std::memory_order_acquire)) return true;
  *seen = gate / kRound;
  take_pieces(thread);
  gate_.fetch_sub(1, std::memory_order_release);
  return true;
}

void ThreadPool::help(int thread) {
  flush_denormals();
  if (size_t(thread) < cores_.size()) pin_to(cores_[size_t(thread)]);
  uint64_t seen = 0;
  int turns = 0;
  while (!stop_) {
    const uint32_t wakes = wakes_.load();
    if (join_round(thread, &seen)) {
      turns = 0;
    } else if (busy_.load(std::memory_order_relaxed)) {
      spin(&turns);
    } else {
      if (!stop_) wakes_.wait(wakes);
    }
  }
}

}  // namespace laplace
