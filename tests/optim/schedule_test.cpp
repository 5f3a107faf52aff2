// Learning-rate schedules against the golden ones, and their properties at the corners.
#include "optim/schedule.h"

#include <cmath>
#include <limits>

#include "optim/common.h"
#include "support/golden.h"

namespace laplace::testing {
namespace {

TEST(Schedule, CosineEqualsGolden) {
  const GoldenFile file("schedule.safetensors");
  for (const std::string& name : file.cases()) {
    const CosineSchedule schedule{file.number(name, "peak"), file.number(name, "min_ratio"),
                                  file.integer(name, "warmup"), file.integer(name, "total")};
    schedule.validate();
    const at::Tensor steps = file.tensor(name, "step");
    const at::Tensor rates = file.tensor(name, "lr");
    for (int64_t i = 0; i < steps.numel(); ++i) {
      const double expected = rates[i].item<double>();
      EXPECT_NEAR(schedule.at(steps[i].item<int64_t>()), expected, 1e-13 * schedule.peak)
          << name << " step " << steps[i].item<int64_t>();
    }
  }
}

TEST(Schedule, PeakOnceAndLastRateAtTheLastStep) {
  const Schedule cosine{1.0, 0.1, 4, 20};
  EXPECT_DOUBLE_EQ(cosine.at(0), 0.25);
  EXPECT_DOUBLE_EQ(cosine.at(3), 1.0);
  EXPECT_LT(cosine.at(4), 1.0);
  EXPECT_DOUBLE_EQ(cosine.at(19), 0.1);
  EXPECT_DOUBLE_EQ(cosine.at(1000), 0.1);
}

TEST(Schedule, WarmupStableDecay) {
  const Schedule schedule{2.0, 0.25, 4, 20, ScheduleKind::kWarmupStableDecay, 6};
  schedule.validate();
  EXPECT_DOUBLE_EQ(schedule.at(0), 0.5);
  for (int64_t step = 3; step < 14; ++step) EXPECT_DOUBLE_EQ(schedule.at(step), 2.0);
  EXPECT_DOUBLE_EQ(schedule.at(14), 1.75);
  EXPECT_DOUBLE_EQ(schedule.at(19), 0.5);
  EXPECT_DOUBLE_EQ(schedule.at(20), 0.5);
}

TEST(Schedule, ConstantStaysAtThePeak) {
  const Schedule schedule{3.0, 0.1, 2, 10, ScheduleKind::kConstant};
  EXPECT_DOUBLE_EQ(schedule.at(0), 1.5);
  EXPECT_DOUBLE_EQ(schedule.at(1), 3.0);
  EXPECT_DOUBLE_EQ(schedule.at(50), 3.0);
}

TEST(Schedule, RefusesWhatMakesNoSense) {
  const auto refuses = [](const Schedule& schedule, std::string_view part) {
    expect_error(ErrorKind::kBadInput, part, [&] { schedule.validate(); });
  };
  refuses({-1.0, 0.1, 0, 10}, "learning rate");
  refuses({std::numeric_limits<double>::quiet_NaN(), 0.1, 0, 10}, "learning rate");
  refuses({1.0, 1.5, 0, 10}, "min_ratio");
  refuses({1.0, 0.1, 0, 0}, "total");
  refuses({1.0, 0.1, 11, 10}, "warmup");
  refuses({1.0, 0.1, 4, 10, ScheduleKind::kWarmupStableDecay, 7}, "decay");
}

TEST(Schedule, NamesAndTypos) {
  EXPECT_EQ(parse_schedule("cosine"), ScheduleKind::kCosine);
  EXPECT_EQ(parse_schedule("wsd"), ScheduleKind::kWarmupStableDecay);
  EXPECT_EQ(parse_schedule("constant"), ScheduleKind::kConstant);
  expect_error(ErrorKind::kBadInput, "did you mean \"cosine\"", [] { parse_schedule("cosin"); });
}

}  // namespace
}  // namespace laplace::testing
