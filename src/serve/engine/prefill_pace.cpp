// See prefill_pace.h.
#include "serve/engine/prefill_pace.h"

#include <algorithm>

namespace laplace {

namespace {

// With fewer rows a product reads its weights for little work; it is also the guess as long as c is
// not known.
constexpr int64_t kLeast = 16;
// Mixed steps after which d is looked at again.
constexpr int64_t kMostMixedSteps = 64;

void approach(double value, double* mean) {
  constexpr double kShare = 0.25;
  *mean = *mean == 0 ? value : *mean + kShare * (value - *mean);
}

bool is_near(int64_t a, int64_t b) { return 2 * a >= b && 2 * b >= a; }

}  // namespace

bool PrefillPace::knows(int64_t decode_rows) const {
  return decode_seconds_ > 0 && is_near(decode_rows, width_) && mixed_steps_ < kMostMixedSteps;
}

int64_t PrefillPace::budget(int64_t decode_rows, int64_t prompts) const {
  if (stretch_ <= 0 || decode_rows == 0) return most_;
  if (!knows(decode_rows)) return 0;
  int64_t tokens = kLeast;
  if (token_seconds_ > 0) {
    const double crowd = std::max(1.0, double(prompts) / double(decode_rows));
    const double fit = (stretch_ * crowd - 1) * decode_seconds_ / token_seconds_;
    tokens = int64_t(std::min(fit, double(most_)));
  }
  return std::min(std::max(tokens, kLeast), most_);
}

void PrefillPace::observe(int64_t decode_rows, int64_t prefill_rows, double seconds) {
  if (prefill_rows == 0) {
    if (!is_near(decode_rows, width_)) decode_seconds_ = 0;  // that of another width
    width_ = decode_rows;
    mixed_steps_ = 0;
    return approach(seconds, &decode_seconds_);
  }
  if (decode_rows > 0) ++mixed_steps_;
  if (prefill_rows < std::min(kLeast, most_)) return;  // mostly what any step costs
  // A pace far below that of the whole step is a slow step's echo in the mean.
  const double whole = seconds / double(prefill_rows);
  const double beside = decode_rows == 0 ? 0 : decode_seconds_ / double(prefill_rows);
  approach(std::max(whole - beside, whole / 4), &token_seconds_);
}

}  // namespace laplace
