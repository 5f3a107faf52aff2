// See metrics.h. Names and buckets: vLLM's documentation, "Production metrics".
#include "serve/http/metrics.h"

#include <algorithm>
#include <cmath>

#include "base/strings.h"

namespace laplace {

namespace {

const std::vector<double> kFirstTokenBounds = {0.001, 0.005, 0.01, 0.02,  0.04,  0.06,  0.08, 0.1,
                                               0.25,  0.5,   0.75, 1.0,   2.5,   5.0,   7.5,  10.0,
                                               20.0,  40.0,  80.0, 160.0, 640.0, 2560.0};
const std::vector<double> kTokenBounds = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,  0.3,  0.4, 0.5,
                                          0.75, 1.0,   2.5,  5.0,   7.5, 10.0, 20.0, 40.0, 80.0};
const std::vector<double> kRequestBounds = {0.3,  0.5,   0.8,   1.0,   1.5,   2.0,    2.5,
                                            5.0,  10.0,  15.0,  20.0,  30.0,  40.0,   50.0,
                                            60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0};
const std::vector<double> kChoices = {1, 2, 5, 10, 20};

std::string number(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15) return strf("%.1f", value);
  return strf("%.9g", value);
}

void write_head(std::string& out, std::string_view name, std::string_view help,
                std::string_view type) {
  out += cat("# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n");
}

void write_value(std::string& out, std::string_view name, std::string_view labels, double value) {
  out += cat(name, "{", labels, "} ", number(value), "\n");
}

}  // namespace

std::vector<double> one_two_five(double largest) {
  std::vector<double> bounds;
  for (double power = 1; power <= largest; power *= 10) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (factor * power <= largest) bounds.push_back(factor * power);
    }
  }
  return bounds;
}

Histogram::Histogram(std::vector<double> bounds)
    : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}

void Histogram::observe(double value) {
  const auto place = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  const std::lock_guard lock(mutex_);
  ++counts_[size_t(place)];
  sum_ += value;
}

void Histogram::write(std::string& out, std::string_view name, std::string_view help,
                      std::string_view labels) const {
  const std::lock_guard lock(mutex_);
  write_head(out, name, help, "histogram");
  int64_t total = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    total += counts_[i];
    const std::string bound = i < bounds_.size() ? number(bounds_[i]) : "+Inf";
    out += cat(name, "_bucket{le=\"", bound, "\",", labels, "} ", total, "\n");
  }
  write_value(out, cat(name, "_sum"), labels, sum_);
  out += cat(name, "_count{", labels, "} ", total, "\n");
}

ServerMetrics::ServerMetrics()
    : first_token(kFirstTokenBounds),
      inter_token(kTokenBounds),
      per_output_token(kTokenBounds),
      total(kRequestBounds),
      queue(kRequestBounds),
      prefill(kRequestBounds),
      decode(kRequestBounds),
      inference(kRequestBounds),
      prompt_length(one_two_five(1e6)),
      generated_length(one_two_five(1e6)),
      params_n(kChoices),
      params_max_tokens(one_two_five(1e6)) {}

void ServerMetrics::observe(const RequestTimes& times) {
  prompt_tokens += times.prompt_tokens;
  generated_tokens += times.generated_tokens;
  cached_tokens += times.cached_tokens;
  total.observe(times.total);
  queue.observe(times.queue);
  if (times.first_token >= 0) {
    first_token.observe(times.first_token);
    prefill.observe(std::max(0.0, times.first_token - times.queue));
    decode.observe(times.decode);
  }
  inference.observe(std::max(0.0, times.total - times.queue));
  if (times.generated_tokens > 1) {
    per_output_token.observe(times.decode / double(times.generated_tokens - 1));
  }
  prompt_length.observe(double(times.prompt_tokens));
  generated_length.observe(double(times.generated_tokens));
  params_n.observe(double(times.n));
  params_max_tokens.observe(double(times.max_tokens));
}

void ServerMetrics::count_finish(std::string_view reason) {
  const std::lock_guard lock(mutex_);
  ++finishes_[std::string(reason)];
}

void ServerMetrics::count_response(int status) {
  const std::lock_guard lock(mutex_);
  ++responses_[status];
}

void ServerMetrics::write(std::string& out, const std::string& labels) const {
  write_counter(out, "vllm:prompt_tokens_total", "Number of prompt tokens.", labels,
                double(prompt_tokens));
  write_counter(out, "vllm:generation_tokens_total", "Number of generated tokens.", labels,
                double(generated_tokens));
  {
    const std::lock_guard lock(mutex_);
    write_head(out, "vllm:request_success_total", "Choices that ended, by how.", "counter");
    for (const auto& [reason, count] : finishes_) {
      write_value(out, "vllm:request_success_total",
                  cat("finished_reason=\"", reason, "\",", labels), double(count));
    }
    write_head(out, "laplace:http_responses_total", "Answers by status.", "counter");
    for (const auto& [status, count] : responses_) {
      write_value(out, "laplace:http_responses_total", cat("status=\"", status, "\",", labels),
                  double(count));
    }
  }
  write_counter(out, "laplace:disconnects_total",
                "Exchanges that the client left, or was dropped from.", labels,
                double(disconnects));
  write_counter(out, "laplace:rejected_total", "Requests refused for load (429 and 503).", labels,
                double(rejected));
  const auto write = [&](const Histogram& histogram, std::string_view name, std::string_view help) {
    histogram.write(out, name, help, labels);
  };
  write(first_token, "vllm:time_to_first_token_seconds", "From arrival to the first token.");
  write(inter_token, "vllm:inter_token_latency_seconds", "Between two tokens of a choice.");
  write(per_output_token, "vllm:time_per_output_token_seconds",
        "Mean time for a token of a request, after the first.");
  write(total, "vllm:e2e_request_latency_seconds", "From arrival to the last token.");
  write(queue, "vllm:request_queue_time_seconds", "Until the engine took the request.");
  write(prefill, "vllm:request_prefill_time_seconds", "From then to the first token.");
  write(decode, "vllm:request_decode_time_seconds", "From the first token to the last.");
  write(inference, "vllm:request_inference_time_seconds",
        "From the queue's end to the last token.");
  write(prompt_length, "vllm:request_prompt_tokens", "Prompt tokens of a request.");
  write(generated_length, "vllm:request_generation_tokens", "Generated tokens of a request.");
  write(params_n, "vllm:request_params_n", "The n of a request.");
  write(params_max_tokens, "vllm:request_params_max_tokens", "The max_tokens of a request.");
}

void write_gauge(std::string& out, std::string_view name, std::string_view help,
                 std::string_view labels, double value) {
  write_head(out, name, help, "gauge");
  write_value(out, name, labels, value);
}

void write_counter(std::string& out, std::string_view name, std::string_view help,
                   std::string_view labels, double value) {
  write_head(out, name, help, "counter");
  write_value(out, name, labels, value);
}

std::string label_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace laplace
