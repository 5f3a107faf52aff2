// See process.h.
#include "base/process.h"

#include <fcntl.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <fstream>
#if defined(__SSE2__)
#include <pmmintrin.h>
#include <xmmintrin.h>
#endif

namespace laplace {

namespace {

std::atomic<bool> stop{false};
std::atomic<int64_t> first_signal_ms{0};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);

// One stop may come as two signals: `timeout` and others send them to a process and to its group.
constexpr int64_t kSameStopMs = 500;

int64_t clock_ms() {
  struct timespec now {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

void on_signal(int number) {
  const int64_t now = clock_ms();
  int64_t first = 0;
  if (first_signal_ms.compare_exchange_strong(first, now)) {
    stop = true;
  } else if (now - first > kSameStopMs) {  // a second one: die as it says
    std::signal(number, SIG_DFL);
    std::raise(number);
  }
}

// A standard descriptor that is closed would be given to the next file that is opened, and what is
// printed would land in it.
void hold_standard_descriptors() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) >= 0) continue;
    // The lowest free number is this one.
    (void)::open("/dev/null", descriptor == STDIN_FILENO ? O_RDONLY : O_WRONLY);
  }
}

}  // namespace

void init_process() {
  hold_standard_descriptors();
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, -1);
#if defined(__SSE2__)
  _MM_SET_FLUSH_ZERO_MODE(_MM_FLUSH_ZERO_ON);
  _MM_SET_DENORMALS_ZERO_MODE(_MM_DENORMALS_ZERO_ON);
#endif
  ::setenv("MKL_CBWR", "AUTO", 0);
  ::setenv("MKL_DYNAMIC", "FALSE", 0);
}

void install_stop_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  struct sigaction hang_up {};  // of a terminal that is closed; nohup has it ignored
  if (::sigaction(SIGHUP, nullptr, &hang_up) == 0 && hang_up.sa_handler != SIG_IGN) {
    ::sigaction(SIGHUP, &action, nullptr);
  }
}

void ignore_broken_pipes() { std::signal(SIGPIPE, SIG_IGN); }

bool stop_requested() { return stop.load(std::memory_order_relaxed); }

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0;
  int64_t resident = 0;
  return file >> total >> resident ? resident * int64_t{::sysconf(_SC_PAGESIZE)} : 0;
}

int64_t peak_resident_bytes() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace laplace
