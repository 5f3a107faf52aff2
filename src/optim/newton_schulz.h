// Newton-Schulz: a matrix with (nearly) the same singular vectors as X and all singular values near
// 1, by matrix products alone.
//
//   X = X / norm(X);   for each (a, b, c):   A = X Xᵀ,   X = a X + (b A + c A A) X
//
// A tall X is worked on from the right, A = Xᵀ X and X = a X + X (b A + c A A): the transposed
// iteration without a transposition. 4 s² l + 2 s³ operations a step, s and l the short and long
// side; A and A A are symmetric, and of large ones little more than half is multiplied.
//
// Sources: Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024);
// Amsel et al., "The Polar Express" (arXiv 2505.16932), Algorithm 1.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <span>
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

// "simple" (as torch.optim.Muon), "quintic", "polar_express3" to "polar_express8" (the number of
// steps; each step is the best one after those before it, so fewer is cheaper and less exact).
// Throws Error(kBadInput) for any other name.
NewtonSchulzCoefficients newton_schulz_set(std::string_view name);

// How the steps are arranged. kGram takes three steps at a time on the squares of the short side:
// from A = X Xᵀ alone it multiplies the steps' polynomials up, P = Q₃ Q₂ Q₁, and then once X = P X.
// For five steps 8 s² l + 28 s³ operations instead of 20 s² l + 10 s³, less from l = 1.5 s on
// (0.61 of it for l = 5.3 s). More than three at a time would lose the small singular values: with
// σᵢ ~ 1/i², i up to 256, float32 is off by e = 1.2e-4 directly, 3e-4 by threes, 5e-3 by fives.
enum class NewtonSchulzForm {
  kDirect,
  kGram,  // float32 and float64 only: bfloat16 has no digits to spare for A
  kAuto,  // kGram where it is allowed and l is at least 2 s, kDirect elsewhere
};

// "direct", "gram" or "auto"; throws Error(kBadInput) for any other name.
NewtonSchulzForm parse_newton_schulz_form(std::string_view name);

// The iteration with its workspace: two matrices of the largest size asked for and two squares of
// its short side, four for kGram. No allocation once reserve() has seen the largest. One thread at
// a time. bfloat16 is for machines that multiply it natively: without (AVX2) it was some 50 times
// slower than float32.
//
//   at::Tensor x = newton_schulz.input(rows, columns);   fill x, whole
//   const at::Tensor y = newton_schulz.run(x);           valid until the next input()
class NewtonSchulz {
 public:
  // The iteration runs in the dtype and on the device of `options`: bfloat16, float32 or float64.
  NewtonSchulz(NewtonSchulzCoefficients coefficients, const at::TensorOptions& options,
               NewtonSchulzForm form = NewtonSchulzForm::kDirect);

  void reserve(int64_t rows, int64_t columns);
  // The workspace's place for a matrix [rows, columns], contents undefined. A view.
  at::Tensor input(int64_t rows, int64_t columns);
  // Overwrites x, a result of input(), and returns a view of the workspace, [rows, columns].
  at::Tensor run(const at::Tensor& x);

  at::ScalarType dtype() const { return dtype_; }

 private:
  using Steps = std::span<const std::array<double, 3>>;

  bool uses_gram(int64_t rows, int64_t columns) const;
  at::Tensor square(size_t index, int64_t side) const;
  void normalise(const at::Tensor& x);
  // X after one step, or after all of `steps`, into `next`.
  void direct_step(const std::array<double, 3>& step, const at::Tensor& x, at::Tensor& next);
  void gram_steps(Steps steps, const at::Tensor& x, at::Tensor& next);

  NewtonSchulzCoefficients coefficients_;
  at::ScalarType dtype_;
  NewtonSchulzForm form_;
  SquareSummer sum_of_squares_;
  std::array<at::Tensor, 2> matrices_;  // flat: X before and after a step
  std::array<at::Tensor, 4> squares_;   // flat, [s, s]
};

}  // namespace laplace
