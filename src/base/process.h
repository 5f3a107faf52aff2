// What a process of ours does first: memory and floating-point modes, and orderly stopping.
#pragma once

#include <cstdint>

namespace laplace {

// First thing in main, before any thread exists and before LibTorch is touched:
//  - large blocks stay in the heap instead of being mapped and page-faulted anew each time
//  (traps.md);
//  - denormals are flushed to zero (FTZ and DAZ; threads made later inherit the mode);
//  - standard input, output and error are open, on /dev/null where they were closed, so that no
//  file takes their numbers;
//  - matrix products give the same bits from run to run (MKL's conditional numerical
//  reproducibility).
void init_process();

// Makes SIGINT and SIGTERM ask for a stop instead of killing; a second one, half a
// second later or more, kills at once.
void install_stop_signals();
bool stop_requested();
// Writing to a pipe or socket whose reader has gone becomes an error instead of the end.
void ignore_broken_pipes();

// Resident memory of this process in bytes, 0 where unknown.
int64_t resident_bytes();
// Its peak so far.
int64_t peak_resident_bytes();

}  // namespace laplace
