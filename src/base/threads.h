// The thread policy of the host tools (tokenizer, importers): plain threads over an index range.
// Tensor operators run on ATen's pool instead (at::parallel_for); the two never run at once.
#pragma once

#include <cstdint>
#include <functional>

namespace laplace {

// More threads than a user can have meant.
inline constexpr int kMostThreads = 1024;

// Cores this process may use (affinity respected), at least 1.
int available_cores();

// Calls body(i) for every i in [0, count), on `threads` threads (the caller's among them), each
// taking the next index when free. An exception stops the rest; that of the smallest i is rethrown
// here, however the threads ran.
void parallel_for(int64_t count, int threads, const std::function<void(int64_t)>& body);

}  // namespace laplace
