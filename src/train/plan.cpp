// See plan.h.
#include "train/plan.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"

namespace laplace {

namespace {

// `share_or_count` below 1: a share of the steps; else a number of steps.
int64_t steps_of(double share_or_count, int64_t total) {
  return std::llround(share_or_count < 1 ? share_or_count * double(total) : share_or_count);
}

}  // namespace

void check_options(const TrainOptions& o) {
  const auto in_range = [](const char* flag, double value, double low, double high) {
    if (value >= low && value <= high) return;  // NaN is refused too
    fail_input("--", flag, " is ", value, ", but must be from ", low, " to ", high);
  };
  constexpr double kMost = 1e15;
  in_range("seq-length", double(o.seq_length), 1, 1e9);
  in_range("batch", double(o.batch), 1, 1e9);
  in_range("steps", double(o.steps), 0, kMost);
  in_range("tokens", o.tokens, 0, kMost);
  in_range("minutes", o.minutes, 0, 1e9);
  in_range("adamw-lr", o.adamw_lr, 0, 1e3);
  in_range("warmup", o.warmup, 0, kMost);
  in_range("decay", o.decay, 0, kMost);
  in_range("min-lr-ratio", o.min_lr_ratio, 0, 1);
  in_range("val-tokens", o.val_tokens, 1, kMost);
  in_range("checkpoint-minutes", o.checkpoint_minutes, 0, 1e9);
  in_range("weight-decay", o.weight_decay, 0, 1e3);
  in_range("eps", o.eps, 1e-30, 1);  // float32 has nothing smaller that is not zero
  if (!(o.lr > 0 && o.lr <= 1e3)) {
    fail_input("--lr is ", o.lr, ", but must be above 0 and at most 1000");
  }
  (void)parse_schedule(o.schedule);
  if (o.micro_batch < 0 || (o.micro_batch > 0 && o.batch % o.micro_batch != 0)) {
    fail_input("--micro-batch is ", o.micro_batch, ", but must divide --batch (", o.batch, ")");
  }
  const int budgets = (o.steps > 0) + (o.minutes > 0) + (o.tokens > 0);
  if (budgets != 1) fail_input("give one positive budget: --steps, --minutes or --tokens");
  for (const auto& [flag, value] : {std::pair{"val-every", o.val_every},
                                    {"checkpoint-every", o.checkpoint_every},
                                    {"keep-checkpoints", o.keep_checkpoints}}) {
    if (value < 0) fail_input("--", flag, " is ", value, ", but must not be negative");
  }
  if (o.seed > uint64_t(INT64_MAX)) fail_input("--seed must be below 2^63");
}

int64_t budgeted_steps(const TrainOptions& options) {
  if (options.minutes > 0) return 0;
  if (options.steps > 0) return options.steps;
  const double of_a_step = double(options.batch) * double(options.seq_length);
  return std::max<int64_t>(1, std::llround(options.tokens / of_a_step));
}

Schedule schedule_of(const TrainOptions& options, int64_t total, double peak) {
  constexpr int64_t kTotalNotKnown = 1000;
  const bool timed = options.minutes > 0;
  Schedule s;
  s.peak = peak;
  s.min_ratio = options.min_lr_ratio;
  s.kind = parse_schedule(options.schedule);
  s.total = total > 0 ? total : kTotalNotKnown;
  s.warmup = steps_of(options.warmup, s.total);
  s.decay = steps_of(options.decay, s.total);
  if (timed) {
    const bool share = options.warmup > 0 && options.warmup < 1;
    s.warmup = std::min(share ? std::max(s.warmup, kCalibrationSteps) : s.warmup, s.total);
  }
  // Rounded shares of few steps may be more than are left, too.
  const bool shares =
      options.warmup < 1 && options.decay < 1 && options.warmup + options.decay <= 1;
  if (timed || shares) s.decay = std::min(s.decay, s.total - s.warmup);
  s.validate();
  return s;
}

double typical_seconds(const std::vector<double>& step_seconds) {
  const size_t taken = std::min(step_seconds.size(), size_t(kCalibrationSteps));
  std::vector<double> later(step_seconds.end() - ptrdiff_t(taken - taken / 2), step_seconds.end());
  const auto middle = later.begin() + ptrdiff_t(later.size() / 2);
  std::nth_element(later.begin(), middle, later.end());
  return *middle;
}

}  // namespace laplace
