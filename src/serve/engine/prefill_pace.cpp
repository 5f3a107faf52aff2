// See prefill_pace.h.
#include "serve/engine/prefill_pace.h"

#include <algorithm>

namespace laplace {

namespace {

// With fewer rows a product reads its weights for little work; it is also the guess as long as
// nothing is known.
constexpr int64_t kLeast = 32;

void approach(double value, double* mean) {
  constexpr double kShare = 0.25;
  *mean = *mean == 0 ? value : *mean + kShare * (value - *mean);
}

}  // namespace

int64_t PrefillPace::budget(int64_t decode_rows) const {
  if (stretch_ <= 0 || decode_rows == 0) return most_;
  int64_t tokens = kLeast;
  if (decode_seconds_ > 0 && token_seconds_ > 0) {
    const double fit = (stretch_ - 1) * decode_seconds_ / token_seconds_;
    tokens = int64_t(std::min(fit, double(most_)));
  }
  return std::min(std::max(tokens, kLeast), most_);
}

void PrefillPace::observe(int64_t decode_rows, int64_t prefill_rows, double seconds) {
  if (prefill_rows == 0) return approach(seconds, &decode_seconds_);
  if (prefill_rows < std::min(kLeast, most_)) return;  // mostly what any step costs
  // A pace far below that of the whole step is a slow step's echo in the mean.
  const double whole = seconds / double(prefill_rows);
  const double beside = decode_rows == 0 ? 0 : decode_seconds_ / double(prefill_rows);
  approach(std::max(whole - beside, whole / 4), &token_seconds_);
}

}  // namespace laplace
