// The training line and log.jsonl.
#include "train/run_log.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "support/scratch.h"

namespace laplace {
namespace {

TEST(RunLog, TrainingLine) {
  StepReport report;
  report.step = 120;
  report.total_steps = 1000;
  report.loss = 3.412;
  report.grad_norm = 0.412;
  report.lr = 1.2e-3;
  report.tokens_per_second = 18200;
  report.gemm_share = 0.613;
  report.seconds_left = 252;
  EXPECT_EQ(training_line(report),
            "step 120/1000 | loss 3.4120 | grad 0.412 | lr 1.2e-03 | 18.2k tok/s | 61.3 % of GEMM "
            "limit | 4m12s left");
}

TEST(RunLog, KeepsTheLinesOfTheStepsBeforeResuming) {
  const testing::ScratchDirectory scratch;
  const auto steps_in_log = [&] {
    std::vector<int64_t> steps;
    std::istringstream text(read_file(scratch / "log.jsonl"));
    for (std::string line; std::getline(text, line);) {
      steps.push_back(parse_json(line, "log")["step"].get<int64_t>());
    }
    return steps;
  };
  StepReport report;
  {
    RunLog log(scratch.path(), 0);
    for (report.step = 1; report.step <= 5; ++report.step) log.step(report);
  }
  write_file_atomic(scratch / "log.jsonl", read_file(scratch / "log.jsonl") + "{\"step\": 6, \"lo");
  {
    RunLog log(scratch.path(), 3);
    report.step = 4;
    log.step(report);
    log.validation(4, {});
  }
  EXPECT_EQ(steps_in_log(), (std::vector<int64_t>{1, 2, 3, 4, 4}));
}

}  // namespace
}  // namespace laplace
