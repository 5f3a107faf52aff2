// The executor's threads. Between begin() and end() helpers spin, so that handing out work costs
// half a microsecond; otherwise they sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace laplace {

// Denormals count as zero in the calling thread from here on (x86-64), so that bits do not depend
// on which thread computes them.
void flush_denormals();

// The numbers of the cores this process may run on.
std::vector<int> allowed_cores();

class ThreadPool {
 public:
  // `threads`: the caller's among them, at least 1. `cores`: thread i runs on cores[i] alone (the
  // caller's where it calls pin_caller()); empty: wherever the system likes.
  explicit ThreadPool(int threads, std::vector<int> cores = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return int(helpers_.size()) + 1; }
  void pin_caller() const;
  // By the thread that calls run(), one at a time.
  void begin();
  void end();
  // body(first, last, thread) for pieces of [0, count) of `grain` each, taken in turn. Returns when
  // all are done; a helper that is late, because its core does other work, is not waited for.
  // Bodies must not throw.
  void run(int64_t count, int64_t grain,
           const std::function<void(int64_t first, int64_t last, int thread)>& body);

 private:
  using Body = std::function<void(int64_t, int64_t, int)>;

  void help(int thread);
  void end_helpers();
  // Joins the round that is open, unless it is `*seen`; false when there is none to join.
  bool join_round(int thread, uint64_t* seen);
  void take_pieces(int thread);
  void wake();

  const std::vector<int> cores_;
  std::vector<std::thread> helpers_;
  std::atomic<bool> busy_{false}, stop_{false};
  std::atomic<uint32_t> wakes_{0};  // sleepers wait for it to change
  // The round's number, whether it can be joined, and how many helpers have: body_, count_ and
  // grain_ do not change while any is inside.
  std::atomic<uint64_t> gate_{0};
  std::atomic<int64_t> next_{0};  // the first piece not taken yet
  const Body* body_ = nullptr;
  int64_t count_ = 0, grain_ = 1;
};

}  // namespace laplace
