// main() of the operators' tests: exits with 77 (skipped) when LAPLACE_CPU asks for an instruction
// set that this machine lacks, so that no run passes by testing another one.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/process.h"
#include "ops/simd/targets.h"

int main(int argc, char** argv) {
  laplace::init_process();
  testing::InitGoogleMock(&argc, argv);
  const char* const forced = std::getenv("LAPLACE_CPU");
  const auto sets = laplace::ops::available_instruction_sets();
  if (forced != nullptr && std::find(sets.begin(), sets.end(), forced) == sets.end()) {
    std::printf("skipped: this machine has no %s\n", forced);
    return 77;
  }
  return RUN_ALL_TESTS();
}
