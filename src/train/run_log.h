// What a run tells: the training line for people, and log.jsonl with a line a step for programs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/files.h"
#include "train/validation.h"

namespace laplace {

struct StepReport {
  int64_t step = 0;  // steps taken, this one included
  int64_t total_steps = 0;
  double loss = 0;
  double grad_norm = 0;
  double lr = 0;
  bool skipped = false;
  double tokens_per_second = 0;
  double gemm_share = 0;  // of the GEMM limit, 0..1
  double seconds_left = 0;
  int64_t tokens = 0;  // trained on so far
  double seconds = 0;  // trained so far
};

// `step 120/1000 | loss 3.4120 | grad 0.412 | lr 1.2e-03 | 18.2k tok/s | 61.3 % of GEMM limit |
// 4m12s left`
std::string training_line(const StepReport& report);

// Appends to <run>/log.jsonl; each line is whole, flushed to the system when written.
class RunLog {
 public:
  // Keeps the lines of the first `steps` steps (a resumed run writes the later ones again, and a
  // line cut short by a kill is dropped), atomically. `finished`: there are no later ones, but the
  // last validation comes again.
  RunLog(const Path& run, int64_t steps, bool finished = false);
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  void step(const StepReport& report);
  void validation(int64_t step, const ValidationResult& result);

 private:
  void append(const std::string& line);

  Path path_;
  int descriptor_ = -1;
};

}  // namespace laplace
