// See newton_schulz.h.
#include "optim/newton_schulz.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/strings.h"

namespace laplace {

namespace {

// arXiv 2505.16932, Algorithm 1: the steps for singular values from 1e-3 up, with its safety factor
// of 1.01 worked into all but the last.
constexpr std::array<std::array<double, 3>, 8> kPolarExpress = {{
    {8.205160414005574, -22.90193498705605, 16.460724910180314},
    {4.066395159942775, -2.8611540867551426, 0.5183995226694741},
    {3.9095949044379155, -2.823351735039516, 0.5250369769390025},
    {3.2855640171986153, -2.415301959635945, 0.48529406552790866},
    {2.277873287083977, -1.619821765265441, 0.39848078704168355},
    {1.8725756512746514, -1.2307042574884297, 0.35851616209511666},
    {1.856437109755889, -1.2132392819185351, 0.35679978941375945},
    {1.875, -1.25, 0.375},
}};

NewtonSchulzCoefficients polar_express(int64_t steps) {
  NewtonSchulzCoefficients set;
  set.steps.assign(kPolarExpress.begin(), kPolarExpress.begin() + steps);
  set.norm_factor = 1.01;
  set.norm_add = true;
  return set;
}

at::Tensor first(const at::Tensor& flat, int64_t rows, int64_t columns) {
  return flat.narrow(0, 0, rows * columns).view({rows, columns});
}

void grow(at::Tensor& flat, int64_t size) {
  if (flat.numel() < size) flat = at::empty({size}, flat.options());
}

}  // namespace

NewtonSchulzCoefficients newton_schulz_set(std::string_view name) {
  static const std::array<std::string, 4> kNames = {"simple", "quintic", "polar_express5",
                                                    "polar_express8"};
  if (name == "simple") return {.steps = {5, {3.4445, -4.7750, 2.0315}}};
  if (name == "quintic") {
    return {.steps = {{4.0848, -6.8946, 2.9270},
                      {3.9505, -6.3029, 2.6377},
                      {3.7418, -5.5913, 2.3037},
                      {2.8769, -3.1427, 1.2046},
                      {2.8366, -3.0525, 1.2012}}};
  }
  if (name == "polar_express5") return polar_express(5);
  if (name == "polar_express8") return polar_express(8);
  fail_input("Newton-Schulz coefficients ", quoted(name), " are not known",
             did_you_mean(name, kNames), "; use simple, quintic, polar_express5 or polar_express8");
}

NewtonSchulz::NewtonSchulz(NewtonSchulzCoefficients coefficients, const at::TensorOptions& options)
    : coefficients_(std::move(coefficients)), dtype_(c10::typeMetaToScalarType(options.dtype())) {
  if (dtype_ != at::kBFloat16 && dtype_ != at::kFloat && dtype_ != at::kDouble) {
    fail_input("Newton-Schulz runs in bfloat16, float32 or float64, not in ", dtype_);
  }
  for (at::Tensor& matrix : matrices_) matrix = at::empty({0}, options);
  for (at::Tensor& square : squares_of_short_side_) square = at::empty({0}, options);
}

void NewtonSchulz::reserve(int64_t rows, int64_t columns) {
  const int64_t short_side = std::min(rows, columns);
  for (at::Tensor& matrix : matrices_) grow(matrix, rows * columns);
  for (at::Tensor& square : squares_of_short_side_) grow(square, short_side * short_side);
}

at::Tensor NewtonSchulz::input(int64_t rows, int64_t columns) {
  reserve(rows, columns);
  return first(matrices_[0], rows, columns);
}

void NewtonSchulz::normalise(const at::Tensor& x) {
  const double norm = std::sqrt(squares_.sum(x)) * coefficients_.norm_factor;
  const double eps = coefficients_.norm_eps;
  double divisor = coefficients_.norm_add ? norm + eps : std::max(norm, eps);
  // As torch.optim.Muon, whose norm is a bfloat16 number here.
  if (dtype_ == at::kBFloat16) divisor = c10::BFloat16(float(divisor));
  x.div_(divisor);
}

at::Tensor NewtonSchulz::run(const at::Tensor& input) {
  const at::NoGradGuard no_grad;
  const int64_t rows = input.size(0);
  const int64_t columns = input.size(1);
  const bool tall = rows > columns;
  const int64_t short_side = std::min(rows, columns);
  at::Tensor x = input;
  at::Tensor next = first(matrices_[1], rows, columns);
  at::Tensor gram = first(squares_of_short_side_[0], short_side, short_side);
  at::Tensor polynomial = first(squares_of_short_side_[1], short_side, short_side);
  normalise(x);
  for (const auto& [a, b, c] : coefficients_.steps) {
    if (tall) {
      at::mm_out(gram, x.t(), x);                         // A = Xᵀ X
      at::addmm_out(polynomial, gram, gram, gram, b, c);  // B = b A + c A A
      at::addmm_out(next, x, x, polynomial, a, 1);        // X = a X + X B
    } else {
      at::mm_out(gram, x, x.t());                         // A = X Xᵀ
      at::addmm_out(polynomial, gram, gram, gram, b, c);  // B = b A + c A A
      at::addmm_out(next, x, polynomial, x, a, 1);        // X = a X + B X
    }
    std::swap(x, next);
  }
  return x;
}

}  // namespace laplace
