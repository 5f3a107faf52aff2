// See trainer.h.
#include "train/trainer.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/process.h"
#include "base/progress.h"
#include "base/threads.h"
#include "model/compute_dtype.h"
#include "ops/caching_allocator.h"
#include "optim/schedule.h"
#include "train/batches.h"
#include "train/checkpoint.h"
#include "train/gemm_limit.h"
#include "train/learner.h"
#include "train/run_log.h"

namespace laplace {

namespace {

// A time budget fixes the number of steps after this many steps, by the median time of the later
// half: the first steps also map memory and fill caches. After each as many it is looked at again.
constexpr int64_t kCalibrationSteps = 16;
// Share of a time budget kept for the last validation and checkpoint, and for slower moments.
constexpr double kBudgetReserve = 0.03;
// The number of steps is fixed anew when the machine has become so much slower or faster that the
// run would end this share of its budget too late or too early.
constexpr double kBudgetTolerance = 0.03;
// A run whose gradients are not finite this many times in a row has diverged.
constexpr int64_t kMostSkipsInARow = 20;
constexpr double kShowEvery = 2.0;  // seconds between training lines off a terminal

// `share_or_count` below 1: a share of the steps; else a number of steps.
int64_t steps_of(double share_or_count, int64_t total) {
  const double count = share_or_count < 1 ? share_or_count * double(total) : share_or_count;
  return std::clamp<int64_t>(std::llround(count), 0, total);
}

void check(const TrainOptions& o) {
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
  in_range("val-tokens", o.val_tokens, 0, kMost);
  in_range("checkpoint-minutes", o.checkpoint_minutes, 0, 1e9);
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

class Run {
 public:
  Run(const TrainOptions& options, const std::string& recipe)
      : options_(options),
        out_(options.out),
        config_(ModelConfig::load(options.config)),
        loader_(options.data, "train", options.seq_length, options.seed, config_.vocab_size),
        learner_(config_, options) {
    if (!options.resume && has_checkpoints(out_)) {
      fail_input(out_.string(),
                 " holds a run already; add --resume to go on with it, or choose "
                 "another --out");
    }
    if (has_split(options.data, kValSplit)) {
      validation_ = std::make_unique<SequentialLoader>(options.data, kValSplit, options.seq_length,
                                                       config_.vocab_size);
    } else {
      log_warning(options.data, " holds no text for validation, so there will be none");
    }
    if (!options.resume) refuse_files_of_another_run();
    resume();
    (void)schedule(options_.lr);  // refuses before anything is written
    std::error_code code;
    std::filesystem::create_directories(out_, code);
    if (code) fail("cannot create the directory ", out_.string(), ": ", code.message());
    lock_.emplace(out_ / ".lock", cat("another process trains in ", out_.string(),
                                      "; choose another --out, or end it first"));
    write_file_atomic(out_ / "recipe.toml", recipe);
    log_ = std::make_unique<RunLog>(out_, state_.step);
  }

  TrainResult loop();

 private:
  int64_t tokens_per_step() const { return options_.batch * options_.seq_length; }
  int64_t micro_batch() const {
    return options_.micro_batch > 0 ? options_.micro_batch : options_.batch;
  }
  void refuse_files_of_another_run() const;
  void resume();
  Schedule schedule(double peak) const;
  double read_and_accumulate();
  StepReport one_step();
  void plan_steps_by_time();
  void report(const StepReport& report);
  ValidationResult run_validation(int64_t max_tokens);
  void checkpoint();

  const TrainOptions options_;
  const Path out_;
  const ModelConfig config_;
  const Loader loader_;
  std::unique_ptr<SequentialLoader> validation_;
  Learner learner_;
  RunState state_;
  std::optional<FileLock> lock_;
  std::unique_ptr<RunLog> log_;
  GemmLimit limit_;
  Batch batch_;
  std::vector<double> step_seconds_;  // of this process
  double validation_seconds_ = 0;     // of the last one between steps
  Stopwatch process_watch_;           // since this process began to train
  double seconds_before_ = 0;         // trained by earlier processes
  Stopwatch since_checkpoint_;
  Stopwatch since_line_;
  int64_t skips_in_a_row_ = 0;
};

// A log without a checkpoint, or a recipe that someone wrote by hand.
void Run::refuse_files_of_another_run() const {
  for (const char* name : {"recipe.toml", "log.jsonl"}) {
    if (std::filesystem::exists(out_ / name)) {
      fail_input(out_.string(), " holds a ", name,
                 ", which would be overwritten; add --resume to go "
                 "on with that run, or choose another --out");
    }
  }
}

void Run::resume() {
  RunState fresh;
  fresh.seed = options_.seed;
  fresh.batch = options_.batch;
  fresh.seq_length = options_.seq_length;
  fresh.train_tokens = loader_.tokens();
  fresh.data = loader_.fingerprint();
  fresh.dtype = learner_.model().compute_dtype() == at::kFloat ? "float32" : "bfloat16";
  if (options_.steps > 0) fresh.total_steps = options_.steps;
  if (options_.tokens > 0) {
    fresh.total_steps =
        std::max<int64_t>(1, std::llround(options_.tokens / double(tokens_per_step())));
  }
  const auto saved = options_.resume ? load_checkpoint(out_, config_, learner_) : std::nullopt;
  if (!saved) {
    state_ = fresh;
    return;
  }
  const auto same = [&](const char* what, auto was, auto is) {
    if (was != is) {
      fail_input(out_.string(), " was begun with ", what, " ", was, ", not ", is,
                 "; resume with the same, or choose another --out");
    }
  };
  same("--seed", saved->seed, fresh.seed);
  same("--batch", saved->batch, fresh.batch);
  same("--dtype", saved->dtype, fresh.dtype);
  same("--seq-length", saved->seq_length, fresh.seq_length);
  same("a training split of tokens:", saved->train_tokens, fresh.train_tokens);
  if (!saved->data.empty() && saved->data != fresh.data) {
    fail_input(out_.string(), " was begun with other data than ", options_.data,
               "; resume with the same, or choose another --out");
  }
  state_ = *saved;
  state_.data = fresh.data;
  if (fresh.total_steps > 0) state_.total_steps = fresh.total_steps;
  seconds_before_ = state_.seconds;
  log_info("resuming after step ", state_.step);
}

Schedule Run::schedule(double peak) const {
  Schedule s;
  s.peak = peak;
  s.min_ratio = options_.min_lr_ratio;
  s.kind = parse_schedule(options_.schedule);
  // Before a time budget has fixed the steps, warm up as if they were few.
  const bool fixed = state_.total_steps > 0;
  s.total = fixed ? state_.total_steps : 1000;
  s.warmup = steps_of(options_.warmup, s.total);
  s.decay = steps_of(options_.decay, s.total);
  if (options_.minutes > 0) s.warmup = std::max(std::min(kCalibrationSteps, s.total), s.warmup);
  if (!fixed) s.warmup = kCalibrationSteps, s.total = std::max(s.total, kCalibrationSteps);
  // Of few steps, rounded shares, or the first steps of a time budget, may be more than are left.
  const bool shares =
      options_.warmup < 1 && options_.decay < 1 && options_.warmup + options_.decay <= 1;
  if (options_.minutes > 0 || shares) s.decay = std::min(s.decay, s.total - s.warmup);
  s.validate();
  return s;
}

double Run::read_and_accumulate() {
  const int64_t rows = micro_batch();
  double loss = 0;
  for (int64_t first = 0; first < options_.batch; first += rows) {
    loader_.fill(state_.cursor + uint64_t(first), rows, batch_);
    const auto [tokens, doc_start] = to_tensors(batch_, learner_.model().device());
    const double weight = double(rows) / double(options_.batch);
    loss += weight * learner_.accumulate(tokens, doc_start, weight);
  }
  return loss;
}

StepReport Run::one_step() {
  const Stopwatch watch;
  const double muon_rate = schedule(options_.lr).at(state_.step);
  const double adamw_peak = options_.adamw_lr > 0 ? options_.adamw_lr : options_.lr;
  StepReport report;
  report.loss = read_and_accumulate();
  const ClipResult clip = learner_.step(muon_rate, schedule(adamw_peak).at(state_.step));
  state_.cursor += uint64_t(options_.batch);
  ++state_.step;
  skips_in_a_row_ = clip.finite ? 0 : skips_in_a_row_ + 1;
  state_.skipped += clip.finite ? 0 : 1;
  if (skips_in_a_row_ > kMostSkipsInARow) {
    fail("the gradients of ", kMostSkipsInARow, " steps in a row are not finite; resume from the ",
         "last checkpoint with a lower --lr");
  }
  const double seconds = watch.seconds();
  step_seconds_.push_back(seconds);
  state_.seconds = seconds_before_ + process_watch_.seconds();
  report.step = state_.step;
  report.total_steps = state_.total_steps;
  report.grad_norm = clip.norm;
  report.lr = muon_rate;
  report.skipped = !clip.finite;
  report.tokens_per_second = double(tokens_per_step()) / seconds;
  report.gemm_share = limit_.seconds_per_token * report.tokens_per_second;
  report.tokens = state_.step * tokens_per_step();
  report.seconds = state_.seconds;
  const size_t recent = std::min<size_t>(step_seconds_.size(), 20);
  double sum = 0;
  for (size_t i = step_seconds_.size() - recent; i < step_seconds_.size(); ++i)
    sum += step_seconds_[i];
  report.seconds_left = double(state_.total_steps - state_.step) * sum / double(recent);
  return report;
}

void Run::plan_steps_by_time() {
  const bool first = state_.total_steps == 0;
  if (!first && state_.total_steps - state_.step < kCalibrationSteps) return;
  std::vector<double> sorted(step_seconds_.end() - kCalibrationSteps / 2, step_seconds_.end());
  std::sort(sorted.begin(), sorted.end());
  double a_step = sorted[sorted.size() / 2];
  if (options_.val_every > 0) a_step += validation_seconds_ / double(options_.val_every);
  const double budget = options_.minutes * 60;
  const double left = budget * (1 - kBudgetReserve) - state_.seconds;
  const double planned = double(state_.total_steps - state_.step) * a_step;
  if (!first && std::abs(planned - left) < kBudgetTolerance * budget) return;
  state_.total_steps = state_.step + std::max<int64_t>(1, std::llround(left / a_step));
  log_info("a step takes ", human_duration(a_step), ", so ", options_.minutes, " minutes make ",
           state_.total_steps, " steps");
}

void Run::report(const StepReport& report) {
  log_->step(report);
  const bool last = report.step == report.total_steps;
  if (report.step > 1 && !last && !report.skipped && since_line_.seconds() < kShowEvery) return;
  since_line_.restart();
  log_info(training_line(report));
}

ValidationResult Run::run_validation(int64_t max_tokens) {
  if (!validation_) return {};
  ValidationOptions options;
  options.max_tokens = max_tokens;
  options.carry = options_.val_carry;
  options.rows = std::max<int64_t>(1, std::min<int64_t>(micro_batch(), 8));
  const ValidationResult result = validate(learner_.model(), *validation_, options);
  log_->validation(state_.step, result);
  log_info(strf("validation after step %lld: loss %.4f, %.4f bits per byte over %s tokens",
                static_cast<long long>(state_.step), result.loss, result.bits_per_byte,
                with_commas(result.tokens).c_str()));
  return result;
}

void Run::checkpoint() {
  state_.adamw_steps = learner_.adamw_steps();
  save_checkpoint(out_, config_, options_.data, learner_, state_, options_.keep_checkpoints);
  since_checkpoint_.restart();
}

TrainResult Run::loop() {
  install_stop_signals();
  const auto& model = learner_.model();
  const int64_t parameters = config_.num_parameters();
  log_info("training ", human_count(double(parameters)), " parameters on ",
           with_commas(loader_.tokens()), " tokens, ", state_.dtype, " products, ",
           at::get_num_threads(), at::get_num_threads() == 1 ? " thread" : " threads");
  limit_ = measure_gemm_limit(config_, micro_batch() * options_.seq_length, model.compute_dtype(),
                              model.device());
  log_info("matrix products alone: ", human_count(1 / limit_.seconds_per_token), " tokens/s (",
           strf("%.0f GFLOP/s)", limit_.flops_per_second / 1e9));
  process_watch_.restart();
  TrainResult result;
  const int64_t begun_at = state_.step;
  while (state_.total_steps == 0 || state_.step < state_.total_steps) {
    if (stop_requested()) {
      result.stopped = true;
      break;
    }
    const StepReport now = one_step();
    result.loss = now.loss;
    report(now);
    if (options_.minutes > 0 && int64_t(step_seconds_.size()) % kCalibrationSteps == 0) {
      plan_steps_by_time();
    }
    const auto due = [&](int64_t every) { return every > 0 && state_.step % every == 0; };
    const bool last = state_.step == state_.total_steps;
    if (due(options_.val_every) && !last) {
      const Stopwatch watch;
      run_validation(std::llround(options_.val_tokens));
      validation_seconds_ = watch.seconds();
    }
    const bool late = options_.checkpoint_minutes > 0 &&
                      since_checkpoint_.seconds() > options_.checkpoint_minutes * 60;
    if ((due(options_.checkpoint_every) || late) && !last) checkpoint();
  }
  result.steps = state_.step;
  result.seconds = process_watch_.seconds();
  result.tokens_per_second =
      double((state_.step - begun_at) * tokens_per_step()) / std::max(result.seconds, 1e-9);
  if (state_.step > 0) checkpoint();
  if (!result.stopped) result.validation = run_validation(0);
  return result;
}

}  // namespace

TrainResult train(const TrainOptions& options, const std::string& recipe) {
  check(options);
  ops::install_caching_allocator();
  at::set_num_threads(options.threads > 0 ? options.threads : available_cores());
  return Run(options, recipe).loop();
}

}  // namespace laplace
