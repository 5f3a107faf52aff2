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

constexpr size_t kGramSteps = 3;  // steps between two looks at X, see NewtonSchulzForm

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

bool is_tall(const at::Tensor& x) { return x.size(0) > x.size(1); }

// Block rows a symmetric product is cut into: more save more of it, until they are too low to be
// multiplied at full speed, which faster dtypes reach earlier.
int64_t block_rows_of(int64_t side, at::ScalarType dtype) {
  const int64_t lowest = dtype == at::kBFloat16 ? 256 : 128;
  return std::clamp<int64_t>(side / lowest, 1, 6);
}

// out = beta add + alpha left right where that is symmetric (beta 0: out = left right). Of k block
// rows only what lies right of the diagonal is multiplied, (k + 1) / (2 k) of the whole; the rest
// mirrors it. `out` is none of the others.
void symmetric_product(const at::Tensor& left, const at::Tensor& right, const at::Tensor& out,
                       const at::Tensor& add = {}, double beta = 0, double alpha = 1) {
  const int64_t side = out.size(0), count = block_rows_of(side, out.scalar_type());
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = side * i / count, end = side * (i + 1) / count;
    const auto block = [&](const at::Tensor& t) {
      return t.slice(0, begin, end).slice(1, begin, side);
    };
    at::Tensor upper = block(out);
    const at::Tensor l = left.slice(0, begin, end), r = right.slice(1, begin, side);
    if (beta == 0) {
      at::mm_out(upper, l, r);
    } else {
      at::addmm_out(upper, block(add), l, r, beta, alpha);
    }
    if (end == side) break;
    out.slice(0, end, side).slice(1, begin, end).copy_(upper.slice(1, end - begin).t());
  }
}

// The square of the short side: X Xᵀ, or Xᵀ X of a tall X.
void gram_of(const at::Tensor& x, const at::Tensor& gram) {
  if (is_tall(x)) {
    symmetric_product(x.t(), x, gram);
  } else {
    symmetric_product(x, x.t(), gram);
  }
}

void grow(at::Tensor& flat, int64_t size) {
  if (flat.numel() < size) flat = at::empty({size}, flat.options());
}

}  // namespace

NewtonSchulzCoefficients newton_schulz_set(std::string_view name) {
  static const std::array<std::string, 8> kNames = {
      "simple",         "quintic",        "polar_express3", "polar_express4",
      "polar_express5", "polar_express6", "polar_express7", "polar_express8"};
  if (name == "simple") return {.steps = {5, {3.4445, -4.7750, 2.0315}}};
  if (name == "quintic") {
    return {.steps = {{4.0848, -6.8946, 2.9270},
                      {3.9505, -6.3029, 2.6377},
                      {3.7418, -5.5913, 2.3037},
                      {2.8769, -3.1427, 1.2046},
                      {2.8366, -3.0525, 1.2012}}};
  }
  if (std::find(kNames.begin() + 2, kNames.end(), name) != kNames.end()) {
    return polar_express(name.back() - '0');
  }
  fail_input("Newton-Schulz coefficients ", quoted(name), " are not known",
             did_you_mean(name, kNames),
             "; use simple, quintic or polar_express3 to polar_express8");
}

NewtonSchulzForm parse_newton_schulz_form(std::string_view name) {
  static const std::array<std::string, 3> kNames = {"direct", "gram", "auto"};
  if (name == kNames[0]) return NewtonSchulzForm::kDirect;
  if (name == kNames[1]) return NewtonSchulzForm::kGram;
  if (name == kNames[2]) return NewtonSchulzForm::kAuto;
  fail_input("Newton-Schulz form ", quoted(name), " is not known", did_you_mean(name, kNames),
             "; use direct, gram or auto");
}

NewtonSchulz::NewtonSchulz(NewtonSchulzCoefficients coefficients, const at::TensorOptions& options,
                           NewtonSchulzForm form)
    : coefficients_(std::move(coefficients)),
      dtype_(c10::typeMetaToScalarType(options.dtype())),
      form_(form) {
  if (dtype_ != at::kBFloat16 && dtype_ != at::kFloat && dtype_ != at::kDouble) {
    fail_input("Newton-Schulz runs in bfloat16, float32 or float64, not in ", dtype_);
  }
  if (form_ == NewtonSchulzForm::kGram && dtype_ == at::kBFloat16) {
    fail_input("Newton-Schulz in form gram needs float32; use form direct for bfloat16");
  }
  for (at::Tensor& matrix : matrices_) matrix = at::empty({0}, options);
  for (at::Tensor& square : squares_) square = at::empty({0}, options);
}

bool NewtonSchulz::uses_gram(int64_t rows, int64_t columns) const {
  if (form_ != NewtonSchulzForm::kAuto) return form_ == NewtonSchulzForm::kGram;
  return dtype_ != at::kBFloat16 && std::max(rows, columns) >= 2 * std::min(rows, columns);
}

void NewtonSchulz::reserve(int64_t rows, int64_t columns) {
  const int64_t side = std::min(rows, columns);
  const size_t square_count = uses_gram(rows, columns) ? 4 : 2;
  for (at::Tensor& matrix : matrices_) grow(matrix, rows * columns);
  for (size_t i = 0; i < square_count; ++i) grow(squares_[i], side * side);
}

at::Tensor NewtonSchulz::input(int64_t rows, int64_t columns) {
  reserve(rows, columns);
  return first(matrices_[0], rows, columns);
}

at::Tensor NewtonSchulz::square(size_t index, int64_t side) const {
  return first(squares_[index], side, side);
}

void NewtonSchulz::normalise(const at::Tensor& x) {
  const double norm = std::sqrt(sum_of_squares_.sum(x)) * coefficients_.norm_factor;
  const double eps = coefficients_.norm_eps;
  double divisor = coefficients_.norm_add ? norm + eps : std::max(norm, eps);
  // As torch.optim.Muon, whose norm is a bfloat16 number here.
  if (dtype_ == at::kBFloat16) divisor = c10::BFloat16(float(divisor));
  x.div_(divisor);
}

void NewtonSchulz::direct_step(const std::array<double, 3>& step, const at::Tensor& x,
                               at::Tensor& next) {
  const auto& [a, b, c] = step;
  const int64_t side = std::min(x.size(0), x.size(1));
  const at::Tensor gram = square(0, side), polynomial = square(1, side);
  gram_of(x, gram);                                       // A = X Xᵀ
  symmetric_product(gram, gram, polynomial, gram, b, c);  // B = b A + c A A
  if (is_tall(x)) {
    at::addmm_out(next, x, x, polynomial, a, 1);  // X = a X + X B
  } else {
    at::addmm_out(next, x, polynomial, x, a, 1);  // X = a X + B X
  }
}

void NewtonSchulz::gram_steps(Steps steps, const at::Tensor& x, at::Tensor& next) {
  const int64_t side = std::min(x.size(0), x.size(1));
  at::Tensor gram = square(0, side);
  at::Tensor factor = square(1, side);
  at::Tensor product = square(2, side);
  at::Tensor spare = square(3, side);
  gram_of(x, gram);  // A = X Xᵀ
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto& [a, b, c] = steps[i];
    symmetric_product(gram, gram, factor, gram, b, c);  // Q = a + b A + c A A
    factor.diagonal().add_(a);
    if (i == 0) {
      product.copy_(factor);
    } else {
      symmetric_product(factor, product, spare);  // P = Q P
      std::swap(spare, product);
    }
    if (i + 1 == steps.size()) break;
    symmetric_product(factor, gram, spare);  // A = Q A Q
    symmetric_product(spare, factor, gram);
  }
  if (is_tall(x)) {
    at::mm_out(next, x, product.t());  // X = X Pᵀ
  } else {
    at::mm_out(next, product, x);  // X = P X
  }
}

at::Tensor NewtonSchulz::run(const at::Tensor& input) {
  const at::NoGradGuard no_grad;
  at::Tensor x = input;
  at::Tensor next = first(matrices_[1], x.size(0), x.size(1));
  normalise(x);
  const size_t stride = uses_gram(x.size(0), x.size(1)) ? kGramSteps : 1;
  for (Steps rest = coefficients_.steps; !rest.empty();) {
    const Steps now = rest.first(std::min(stride, rest.size()));
    if (stride > 1) {
      gram_steps(now, x, next);
    } else {
      direct_step(now[0], x, next);
    }
    std::swap(x, next);
    rest = rest.subspan(now.size());
  }
  return x;
}

}  // namespace laplace
