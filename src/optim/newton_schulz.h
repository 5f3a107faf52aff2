// Newton-Schulz: a matrix with (nearly) the same singular vectors as X and all singular values near
// 1, by matrix products alone.
//
//   X = X / norm(X);   for each (a, b, c):   A = X Xᵀ,   X = a X + (b A + c A A) X
//
// A tall X is worked on from the right, A = Xᵀ X and X = a X + X (b A + c A A): the transposed
// iteration without a transposition. 4 s² l + 2 s³ operations a step, s and l the short and long
// side.
//
// Sources: Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024);
// Amsel et al., "The Polar Express" (arXiv 2505.16932), Algorithm 1.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "optim/clip.h"

namespace laplace {

struct NewtonSchulzCoefficients {
  std::vector<std::array<double, 3>> steps;  // (a, b, c) of each step
  // X is divided by max(norm * norm_factor, norm_eps), or, with norm_add, by their sum.
  double norm_factor = 1;
  double norm_eps = 1e-7;
  bool norm_add = false;
};

// "simple" (as torch.optim.Muon), "quintic", "polar_express5", "polar_express8".
// Throws Error(kBadInput) for any other name.
NewtonSchulzCoefficients newton_schulz_set(std::string_view name);

// The iteration with its workspace: two matrices of the largest size asked for and two squares of
// its short side. No allocation once reserve() has seen the largest. One thread at a time.
//
//   at::Tensor x = newton_schulz.input(rows, columns);   fill x, whole
//   const at::Tensor y = newton_schulz.run(x);           valid until the next input()
class NewtonSchulz {
 public:
  // The iteration runs in the dtype and on the device of `options`: bfloat16, float32 or float64.
  NewtonSchulz(NewtonSchulzCoefficients coefficients, const at::TensorOptions& options);

  void reserve(int64_t rows, int64_t columns);
  // The workspace's place for a matrix [rows, columns], contents undefined. A view.
  at::Tensor input(int64_t rows, int64_t columns);
  // Overwrites x, a result of input(), and returns a view of the workspace, [rows, columns].
  at::Tensor run(const at::Tensor& x);

  at::ScalarType dtype() const { return dtype_; }

 private:
  void normalise(const at::Tensor& x);

  NewtonSchulzCoefficients coefficients_;
  at::ScalarType dtype_;
  SquareSummer squares_;
  std::array<at::Tensor, 2> matrices_;               // flat: X before and after a step
  std::array<at::Tensor, 2> squares_of_short_side_;  // flat: A, and b A + c A A
};

}  // namespace laplace
