// How many prompt tokens a step takes beside sequences that decode: so many that the step takes at
// most `stretch` times as long as one without prompts; more where more prompts than sequences wait
// for it, in that proportion: one stream shall not hold up many prompts. What steps cost is learned
// from steps.
//
// A step of w decoding rows costs d seconds, and each prompt token beside them c more; both are
// running means. d is known for a width near w only: where it is not, or has not been seen for
// long, a step goes without prompts. Only how prompts are cut depends on all this, never a bit of a
// result.
#pragma once

#include <cstdint>

namespace laplace {

class PrefillPace {
 public:
  // At most `most` tokens a step; stretch 0: always `most`.
  PrefillPace(int64_t most, double stretch) : most_(most), stretch_(stretch) {}

  // Tokens of the next step for so many prompts; at least 1 where no sequence decodes.
  int64_t budget(int64_t decode_rows, int64_t prompts) const;
  // A step that has been.
  void observe(int64_t decode_rows, int64_t prefill_rows, double seconds);

 private:
  bool knows(int64_t decode_rows) const;

  int64_t most_;
  double stretch_;
  double decode_seconds_ = 0, token_seconds_ = 0;  // d and c; 0: not known yet
  int64_t width_ = 0;                              // that d is of
  int64_t mixed_steps_ = 0;                        // since a step without prompts
};

}  // namespace laplace
