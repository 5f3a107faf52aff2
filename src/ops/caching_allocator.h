// Memory of large tensors on the CPU, kept and handed out again.
//
// A training step asks for the same sizes every time. Blocks of kLargeBlock and more go back to a
// list instead of to the system, and come from it, on huge pages where the system allows it: a
// steady step takes nothing new, so no page is mapped and zeroed twice.
#pragma once

#include <cstddef>
#include <cstdint>

namespace laplace::ops {

inline constexpr size_t kLargeBlock = size_t{1} << 20;

// Makes it the allocator of CPU tensors, for the rest of the process; once is enough.
void install_caching_allocator();

struct CachingAllocatorStats {
  int64_t new_blocks = 0;  // taken from the system so far
  int64_t bytes = 0;       // held, in use or not
};
CachingAllocatorStats caching_allocator_stats();

}  // namespace laplace::ops
