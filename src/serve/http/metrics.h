// Counters and histograms of the server, as Prometheus reads them. Names and buckets of requests
// are vLLM's, so that dashboards made for it work; what only a server of fixed-state models has is
// named laplace:*.
//
// Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace laplace {

// Counts of values at or below each bound.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds);
  void observe(double value);
  // The lines of the text format. `labels`: `model_name="x"`.
  void write(std::string& out, std::string_view name, std::string_view help,
             std::string_view labels) const;

 private:
  const std::vector<double> bounds_;
  mutable std::mutex mutex_;
  std::vector<int64_t> counts_;  // one more than bounds: above all
  double sum_ = 0;
};

// 1, 2, 5, 10, ... up to `largest`.
std::vector<double> one_two_five(double largest);

inline double seconds_between(std::chrono::steady_clock::time_point from,
                              std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// What is known of one request when it has ended. Seconds.
struct RequestTimes {
  double total = 0;
  double first_token = -1;  // from arrival; -1: there was none
  double queue = 0;         // until the engine had it
  double decode = 0;        // from the first token to the last
  int64_t prompt_tokens = 0, generated_tokens = 0, cached_tokens = 0;
  int64_t max_tokens = 0, n = 1;
};

struct ServerMetrics {
  void observe(const RequestTimes& times);
  void count_finish(std::string_view reason);
  void count_response(int status);
  // All of them. `labels` as in Histogram::write.
  void write(std::string& out, const std::string& labels) const;

  std::atomic<int64_t> prompt_tokens{0}, generated_tokens{0}, cached_tokens{0};
  std::atomic<int64_t> disconnects{0}, rejected{0};
  Histogram first_token, inter_token, per_output_token, total, queue, prefill, decode, inference;
  Histogram prompt_length, generated_length, params_n, params_max_tokens;
  ServerMetrics();

 private:
  mutable std::mutex mutex_;
  std::map<std::string, int64_t, std::less<>> finishes_;
  std::map<int, int64_t> responses_;
};

void write_gauge(std::string& out, std::string_view name, std::string_view help,
                 std::string_view labels, double value);
void write_counter(std::string& out, std::string_view name, std::string_view help,
                   std::string_view labels, double value);
// `text` for use between the quotes of a label.
std::string label_text(std::string_view text);

}  // namespace laplace
