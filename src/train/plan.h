// What a run's options come to: whether they make sense, how many steps the budget is, and the rate
// of each step.
#pragma once

#include <cstdint>
#include <vector>

#include "optim/schedule.h"
#include "train/options.h"

namespace laplace {

// After so many steps of a time budget the speed is known: the first ones also map memory and fill
// caches. The number of steps is looked at after a few, after these, and after each as many again.
inline constexpr int64_t kCalibrationSteps = 16;
inline constexpr int64_t kFirstLook = 4;

// Throws Error(kBadInput) naming the flag and the values that it may have.
void check_options(const TrainOptions& options);

// The steps of --steps or --tokens; 0 for a time budget.
int64_t budgeted_steps(const TrainOptions& options);

// The learning rate of a run of `total` steps (0: not known yet). Throws Error(kBadInput) where the
// warm-up or the descent has no room, but for a time budget, whose steps nobody can know: there
// they are shortened, and a warm-up that is a share of the steps takes kCalibrationSteps at least.
Schedule schedule_of(const TrainOptions& options, int64_t total, double peak);

// The median of the later half of the last steps' seconds.
double typical_seconds(const std::vector<double>& step_seconds);

}  // namespace laplace
