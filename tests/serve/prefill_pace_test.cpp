// How many prompt tokens a step takes beside decoding sequences.
#include "serve/engine/prefill_pace.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace laplace {
namespace {

// Steps that cost what a formula says: the pace finds the prompt tokens that stretch them so far.
TEST(PrefillPace, StretchesStepsOfAKnownCost) {
  for (const double token_seconds : {1e-4, 1e-3}) {
    for (const double stretch : {2.0, 4.0}) {
      PrefillPace pace(4096, stretch);
      EXPECT_EQ(pace.budget(0, 1), 4096) << "nobody waits for the step";
      for (const int64_t width : {3, 40}) {
        const double decode_seconds = 0.1 + 0.01 * double(width);
        const double wanted = std::min((stretch - 1) * decode_seconds / token_seconds, 4096.0);
        int64_t without = 0;
        for (int step = 0; step < 200; ++step) {
          const int64_t tokens = pace.budget(width, 1);
          without += tokens == 0 ? 1 : 0;
          pace.observe(width, tokens, decode_seconds + token_seconds * double(tokens));
          if (step > 60 && tokens > 0) {
            EXPECT_NEAR(double(tokens), wanted, 0.02 * wanted + 1);
          }
        }
        EXPECT_GE(without, 3) << "what a step costs is looked at anew";
        EXPECT_LE(without, 5);
      }
    }
  }
}

TEST(PrefillPace, OneStreamDoesNotHoldUpManyPrompts) {
  PrefillPace pace(4096, 2.5);
  pace.observe(2, 0, 1e-2);
  pace.observe(0, 100, 1e-2);
  EXPECT_NEAR(double(pace.budget(2, 1)), 150, 1);
  EXPECT_EQ(pace.budget(2, 2), pace.budget(2, 1));
  EXPECT_NEAR(double(pace.budget(2, 8)), 900, 1);
}

TEST(PrefillPace, StaysWithinItsBounds) {
  PrefillPace slow(512, 2);
  slow.observe(1, 0, 1e-3);
  slow.observe(1, 32, 10);
  EXPECT_EQ(slow.budget(1, 1), 16) << "prompts go on, however slow they are";
  PrefillPace fast(512, 2);
  fast.observe(1, 0, 10);
  fast.observe(0, 512, 1e-3);
  EXPECT_EQ(fast.budget(1, 1), 512);
  PrefillPace small(4, 2);
  small.observe(1, 0, 1);
  small.observe(1, 4, 1);
  EXPECT_EQ(small.budget(1, 1), 4);
  PrefillPace unbounded(512, 0);
  unbounded.observe(1, 512, 10);
  EXPECT_EQ(unbounded.budget(1, 1), 512);
}

}  // namespace
}  // namespace laplace
