// See schedule.h.
#include "optim/schedule.h"

#include <array>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "base/strings.h"

namespace laplace {

ScheduleKind parse_schedule(std::string_view name) {
  static const std::array<std::string, 3> kNames = {"cosine", "wsd", "constant"};
  if (name == kNames[0]) return ScheduleKind::kCosine;
  if (name == kNames[1]) return ScheduleKind::kWarmupStableDecay;
  if (name == kNames[2]) return ScheduleKind::kConstant;
  fail_input("learning-rate schedule ", quoted(name), " is not known", did_you_mean(name, kNames),
             "; use cosine, wsd or constant");
}

double Schedule::at(int64_t step) const {
  if (step < warmup) return peak * double(step + 1) / double(warmup);
  if (kind == ScheduleKind::kConstant) return peak;
  if (step >= total) return peak * min_ratio;
  if (kind == ScheduleKind::kCosine) {
    const double progress = double(step + 1 - warmup) / double(total - warmup);
    const double share = 0.5 * (1 + std::cos(std::numbers::pi * progress));
    return peak * (min_ratio + (1 - min_ratio) * share);
  }
  const int64_t stable_end = total - decay;
  if (step < stable_end) return peak;
  const double progress = double(step + 1 - stable_end) / double(decay);
  return peak * (1 - (1 - min_ratio) * progress);
}

void Schedule::validate() const {
  if (!(peak >= 0) || !std::isfinite(peak)) {
    fail_input("learning rate ", peak, " must be a finite number of at least 0");
  }
  if (!(min_ratio >= 0 && min_ratio <= 1)) {
    fail_input("learning-rate schedule: min_ratio ", min_ratio, " must lie in 0 to 1");
  }
  if (total < 1) fail_input("learning-rate schedule: total ", total, " must be at least 1 step");
  if (warmup < 0 || warmup > total) {
    fail_input("the warmup takes ", warmup, " steps of ", total, "; take a smaller --warmup");
  }
  if (kind != ScheduleKind::kWarmupStableDecay) return;
  if (decay < 0 || decay > total - warmup) {
    fail_input("the decay takes ", decay, " steps, but the warmup leaves ", total - warmup, " of ",
               total, "; take a smaller --decay or --warmup");
  }
}

}  // namespace laplace
