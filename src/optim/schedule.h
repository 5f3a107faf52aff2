// The learning rate of a step: linear warm-up, then cosine (the default), a plateau with a final
// descent (warm-up, stable, decay), or a constant.
//
// Sources: Loshchilov and Hutter, "SGDR" (ICLR 2017) for the cosine; Hu et al., "MiniCPM" (2024,
// section 4) for warm-up, stable, decay.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace laplace {

enum class ScheduleKind { kCosine, kWarmupStableDecay, kConstant };

// "cosine", "wsd" or "constant"; throws Error(kBadInput) for any other name.
ScheduleKind parse_schedule(std::string_view name);

struct Schedule {
  double peak = 0;
  double min_ratio = 0.1;  // the last rate over the peak; unused by kConstant
  int64_t warmup = 0;      // steps of warm-up; the peak is reached at step warmup - 1
  int64_t total = 0;       // steps in all; later ones stay at the last rate
  ScheduleKind kind = ScheduleKind::kCosine;
  int64_t decay = 0;  // kWarmupStableDecay only: the steps of the final descent

  // The rate of `step`, counted from 0. Call validate() once before.
  double at(int64_t step) const;
  // Throws Error(kBadInput) naming the field that makes no sense.
  void validate() const;
};

using CosineSchedule = Schedule;

}  // namespace laplace
