// Progress of long work on stderr: a bar with rate and time left on a terminal, a line every few
// seconds otherwise. Thread-safe; cheap to call often.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace laplace {

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  void restart() { start_ = std::chrono::steady_clock::now(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

class Progress {
 public:
  // `total` 0: unknown, shows the count and rate only. `unit` as in "B", "tokens", "merges".
  Progress(std::string label, int64_t total, std::string unit);
  ~Progress();  // finishes
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void add(int64_t amount);
  void set(int64_t done);
  // Clears the bar, or prints the last line.
  void finish();

 private:
  void show(bool last);

  const std::string label_;
  const std::string unit_;
  const int64_t total_;
  const bool terminal_;
  Stopwatch watch_;
  std::mutex mutex_;
  int64_t done_ = 0;
  double shown_at_ = 0;
  bool shown_ = false;
  bool finished_ = false;
};

}  // namespace laplace
