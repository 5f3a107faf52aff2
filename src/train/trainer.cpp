// See trainer.h.
#include "train/trainer.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <exception>
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
#include "train/batches.h"
#include "train/checkpoint.h"
#include "train/gemm_limit.h"
#include "train/learner.h"
#include "train/plan.h"
#include "train/run_log.h"

namespace laplace {

namespace {

// Share of a time budget kept for the last validation and checkpoint, and for slower moments.
constexpr double kBudgetReserve = 0.03;
// The number of steps is fixed anew when the machine has become so much slower or faster that the
// run would end this share of its budget too late or too early.
constexpr double kBudgetTolerance = 0.03;
// A finished run goes on when this share of its budget is left.
constexpr double kMoreTime = 0.1;
// A run whose gradients are not finite this many times in a row has diverged.
constexpr int64_t kMostSkipsInARow = 20;
// Of the products' speed alone, for a first guess at a time budget's steps.
constexpr double kGuessedShare = 0.6;
constexpr double kShowEvery = 2.0;  // seconds between training lines off a terminal

class Run {
 public:
  Run(const TrainOptions& options, const std::string& recipe)
      : options_(options),
        out_(options.out),
        config_(ModelConfig::load(options.config)),
        loader_(options.data, "train", options.seq_length, options.seed, config_.vocab_size),
        tokenizer_(loader_.stream().tokenizer()),
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
    const TokenId end = tokenizer_ ? tokenizer_->end_of_text() : -1;
    if (end >= 0 && config_.eos_token_id >= 0 && config_.eos_token_id != end) {
      log_warning(options.config, ": \"eos_token_id\" is ", config_.eos_token_id,
                  ", but the data's ", "texts end with ", end,
                  "; other programs will not see where the model stops");
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
    remove_left_overs(out_);
    begun_at_ = state_.step;
    log_ = std::make_unique<RunLog>(out_, state_.step, finished());
  }

  TrainResult loop();

 private:
  int64_t tokens_per_step() const { return options_.batch * options_.seq_length; }
  int64_t micro_batch() const {
    return options_.micro_batch > 0 ? options_.micro_batch : options_.batch;
  }
  bool finished() const { return state_.total_steps > 0 && state_.step >= state_.total_steps; }
  // Of a time budget, for training.
  double seconds_left() const {
    return options_.minutes * 60 * (1 - kBudgetReserve) - state_.seconds;
  }
  void refuse_files_of_another_run() const;
  void resume();
  Schedule schedule(double peak) const { return schedule_of(options_, state_.total_steps, peak); }
  double read_and_accumulate();
  StepReport one_step();
  void guess_steps_by_time();
  void plan_steps_by_time();
  void report(const StepReport& report);
  ValidationResult run_validation(int64_t max_tokens);
  void checkpoint();
  void keep_what_is_done();
  bool due(int64_t every) const { return every > 0 && state_.step % every == 0; }
  bool checkpoint_is_due() const;

  const TrainOptions options_;
  const Path out_;
  const ModelConfig config_;
  const Loader loader_;
  const std::optional<Tokenizer> tokenizer_;  // goes into every checkpoint
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
  int64_t begun_at_ = 0;  // the step that this process began after
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
  fresh.total_steps = budgeted_steps(options_);
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
  // A finished run whose time budget has grown goes on.
  const bool more_time = seconds_left() > kMoreTime * options_.minutes * 60;
  if (options_.minutes > 0 && more_time && finished()) state_.total_steps = 0;
  seconds_before_ = state_.seconds;
  log_info("resuming after step ", state_.step);
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
  try {
    report.loss = read_and_accumulate();
  } catch (const std::exception&) {  // a damaged shard, say: nothing has changed yet
    keep_what_is_done();
    throw;
  }
  const ClipResult clip = learner_.step(muon_rate, schedule(adamw_peak).at(state_.step));
  state_.cursor += uint64_t(options_.batch);
  ++state_.step;
  skips_in_a_row_ = clip.finite ? 0 : skips_in_a_row_ + 1;
  state_.skipped += clip.finite ? 0 : 1;
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

// Before the first step, from the speed of the products alone.
void Run::guess_steps_by_time() {
  const double a_step = limit_.seconds_per_token * double(tokens_per_step()) / kGuessedShare;
  const auto steps = int64_t(std::min(seconds_left() / a_step, 1e15));
  state_.total_steps = state_.step + std::max<int64_t>(kFirstLook + 1, steps);
}

void Run::plan_steps_by_time() {
  const auto taken = int64_t(step_seconds_.size());
  if (taken != kFirstLook && taken % kCalibrationSteps != 0) return;
  const bool settled = state_.step > kCalibrationSteps;
  if (settled && state_.total_steps - state_.step < kCalibrationSteps) return;
  double a_step = typical_seconds(step_seconds_);
  if (options_.val_every > 0) a_step += validation_seconds_ / double(options_.val_every);
  const double planned = double(state_.total_steps - state_.step) * a_step;
  const double tolerance = kBudgetTolerance * options_.minutes * 60;
  if (std::abs(planned - seconds_left()) < tolerance) return;
  state_.total_steps = state_.step + std::max<int64_t>(1, std::llround(seconds_left() / a_step));
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

// While steps are being skipped the weights may be past saving: then no older checkpoint goes.
void Run::checkpoint() {
  state_.adamw_steps = learner_.adamw_steps();
  save_checkpoint(out_, config_, tokenizer_, learner_, state_,
                  skips_in_a_row_ > 0 ? 0 : options_.keep_checkpoints);
  since_checkpoint_.restart();
}

void Run::keep_what_is_done() {
  if (state_.step == begun_at_) return;
  try {
    checkpoint();
    log_warning("the step after ", state_.step, " failed; the steps before it are saved");
  } catch (const std::exception& error) {
    log_warning("cannot save the steps before the one that failed: ", error.what());
  }
}

bool Run::checkpoint_is_due() const {
  if (finished() || skips_in_a_row_ > 0) return false;
  const bool late = options_.checkpoint_minutes > 0 &&
                    since_checkpoint_.seconds() > options_.checkpoint_minutes * 60;
  return late || due(options_.checkpoint_every);
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
  if (state_.total_steps == 0) guess_steps_by_time();
  if (finished()) log_info("the run has all its steps; a larger budget would go on with it");
  while (!finished()) {
    if (stop_requested()) {
      result.stopped = true;
      break;
    }
    const StepReport now = one_step();
    result.loss = now.loss;
    report(now);
    if (skips_in_a_row_ >= kMostSkipsInARow) {
      fail("the gradients of ", kMostSkipsInARow,
           " steps in a row are not finite; resume from the ", "last checkpoint with a lower --lr");
    }
    if (options_.minutes > 0) plan_steps_by_time();
    if (due(options_.val_every) && !finished()) {
      const Stopwatch watch;
      run_validation(std::llround(options_.val_tokens));
      validation_seconds_ = watch.seconds();
    }
    if (checkpoint_is_due()) checkpoint();
  }
  result.steps = state_.step;
  result.seconds = process_watch_.seconds();
  result.tokens_per_second =
      double((state_.step - begun_at_) * tokens_per_step()) / std::max(result.seconds, 1e-9);
  if (state_.step > 0) checkpoint();
  if (!result.stopped) result.validation = run_validation(0);
  return result;
}

}  // namespace

TrainResult train(const TrainOptions& options, const std::string& recipe) {
  check_options(options);
  ignore_broken_pipes();  // `| head` and a `tee` that Ctrl-C ended cost no checkpoint
  ops::install_caching_allocator();
  at::set_num_threads(options.threads > 0 ? options.threads : available_cores());
  return Run(options, recipe).loop();
}

}  // namespace laplace
