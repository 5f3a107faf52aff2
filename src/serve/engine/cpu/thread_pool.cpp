// See thread_pool.h.
#include "serve/engine/cpu/thread_pool.h"

#include <sched.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>

namespace laplace {

namespace {

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

}  // namespace

void flush_denormals() {
#if defined(__x86_64__)
  _mm_setcsr(_mm_getcsr() | 0x8040);  // FTZ and DAZ
#endif
}

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < threads; ++i) helpers_.emplace_back([this, i] { help(i); });
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  count_ = 0;
  hand_out();
  round_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadPool::hand_out() {
  working_.store(int(helpers_.size()), std::memory_order_relaxed);
  next_.store(0, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
}

// Sleepers wake for a new round only, so begin() hands out an empty one.
void ThreadPool::begin() {
  if (busy_.exchange(true) || helpers_.empty()) return;
  count_ = 0;
  hand_out();
  round_.notify_all();
  wait();
}

void ThreadPool::wait() {
  int turns = 0;
  while (working_.load(std::memory_order_acquire) != 0) spin(&turns);
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
  hand_out();
  if (!busy_.load(std::memory_order_relaxed)) round_.notify_all();
  take_pieces(0);
  wait();
}

void ThreadPool::help(int thread) {
  flush_denormals();
  uint32_t seen = 0;
  int turns = 0;
  while (true) {
    if (round_.load(std::memory_order_acquire) == seen) {
      if (busy_.load(std::memory_order_relaxed)) {
        spin(&turns);
      } else {
        round_.wait(seen, std::memory_order_acquire);
      }
      continue;
    }
    ++seen;
    turns = 0;
    if (stop_) return;
    take_pieces(thread);
    working_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace laplace
