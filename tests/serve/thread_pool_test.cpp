// The executor's threads: every piece is done once, asleep or awake, again and again.
#include "serve/engine/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <numeric>

namespace laplace {
namespace {

TEST(ThreadPool, DoesEveryPieceOnce) {
  for (const int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 300; ++round) {
      if (round % 7 == 0) pool.begin();
      if (round % 11 == 0) pool.end();
      std::vector<int> done(size_t(1 + round % 50));
      pool.run(int64_t(done.size()), 1 + round % 3, [&](int64_t first, int64_t last, int thread) {
        ASSERT_LT(thread, threads);
        for (int64_t i = first; i < last; ++i) ++done[size_t(i)];
      });
      for (const int times : done) ASSERT_EQ(times, 1);
    }
  }
}

TEST(ThreadPool, NothingToDo) {
  ThreadPool pool(2);
  pool.run(0, 1, [](int64_t, int64_t, int) { FAIL(); });
  pool.begin();
  pool.begin();
  pool.end();
}

}  // namespace
}  // namespace laplace
