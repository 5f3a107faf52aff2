// See progress.h.
#include "base/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/strings.h"

namespace laplace {

namespace {

constexpr double kBarEvery = 0.1;   // seconds
constexpr double kLineEvery = 5.0;  // seconds

}  // namespace

Progress::Progress(std::string label, int64_t total, std::string unit)
    : label_(std::move(label)),
      unit_(std::move(unit)),
      total_(total),
      terminal_(::isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() { finish(); }

void Progress::add(int64_t amount) {
  const std::lock_guard lock(mutex_);
  done_ += amount;
  show(false);
}

void Progress::set(int64_t done) {
  const std::lock_guard lock(mutex_);
  done_ = done;
  show(false);
}

void Progress::finish() {
  const std::lock_guard lock(mutex_);
  if (finished_) return;
  finished_ = true;
  if (shown_) show(true);
}

void Progress::show(bool last) {
  const double now = watch_.seconds();
  if (!last && now - shown_at_ < (terminal_ ? kBarEvery : kLineEvery)) return;
  shown_at_ = now;
  shown_ = true;
  const double rate = now > 0 ? double(done_) / now : 0;
  std::string line = label_;
  if (total_ > 0) {
    const double share = std::clamp(double(done_) / double(total_), 0.0, 1.0);
    if (terminal_) {
      constexpr int kWidth = 24;
      const int filled = int(share * kWidth);
      line +=
          " [" + std::string(size_t(filled), '=') + std::string(size_t(kWidth - filled), ' ') + "]";
    }
    line += strf(" %3.0f %%", share * 100);
  }
  line += cat(" ", human_count(double(done_)), " ", unit_, ", ", human_count(rate), "/s");
  if (total_ > done_ && rate > 0) {
    line += cat(", ", human_duration(double(total_ - done_) / rate), " left");
  }
  if (terminal_) {
    std::fprintf(stderr, "\r%s\033[K%s", line.c_str(), last ? "\n" : "");
  } else {
    std::fprintf(stderr, "%s\n", line.c_str());
  }
  std::fflush(stderr);
}

}  // namespace laplace
