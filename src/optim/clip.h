// The global norm of the gradients, and clipping by it.
//
// The norm has the same bits for any number of threads and however the rows of a tensor are spread:
// one float64 sum a row, then the rows' sums in their order, then the tensors' in theirs. Squares
// of float32 cannot overflow in float64, so a norm that is not finite means a gradient that is not.
//
// Source: Pascanu et al., "On the difficulty of training recurrent neural networks" (ICML 2013).
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

namespace laplace {

// Sums of squares in float64; keeps one float64 a row of the largest tensor it has seen.
class SquareSummer {
 public:
  // Rows are along the first dimension; a vector of n has n rows. Any floating dtype, any device.
  double sum(const at::Tensor& tensor);

 private:
  std::vector<double> row_sums_;
};

struct ClipResult {
  double norm = 0;     // before clipping
  double scale = 1;    // what the gradients were multiplied by
  bool finite = true;  // false: a gradient is NaN or infinite, nothing was changed, skip the step
};

class GradientClipper {
 public:
  // `max_norm` 0: measure only. Throws Error(kBadInput) when it is negative or not finite.
  explicit GradientClipper(double max_norm);

  double norm(std::span<const at::Tensor> gradients);
  // Multiplies all gradients in place by min(1, max_norm / (norm + 1e-6)).
  ClipResult clip(std::span<const at::Tensor> gradients);

 private:
  double max_norm_;
  SquareSummer squares_;
};

}  // namespace laplace
