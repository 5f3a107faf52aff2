// main() of the test binaries: the process modes of the program, then GoogleTest.
#include <gmock/gmock.h>

#include "base/process.h"

int main(int argc, char** argv) {
  laplace::init_process();
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
