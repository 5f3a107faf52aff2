// gla_step in ATen operators only. The product with q is a sum over dk of elementwise products,
// whose order does not depend on the number of slots.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <cmath>

#include "ops/common.h"
#include "ops/gla_step/gla_step.h"

namespace laplace::ops {

at::Tensor gla_step_portable(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const at::Tensor& log_decay, at::Tensor& state) {
  const auto dtype = state.scalar_type();
  // S lambda as S + S (lambda - 1): a lambda rounded to float32 would drift over thousands of
  // tokens.
  const at::Tensor fade =
      log_decay.to(at::kDouble).expm1().to(state.device(), dtype).view({1, -1, 1, 1});
  state.add_(state * fade).add_(k.to(dtype).unsqueeze(-1) * v.to(dtype).unsqueeze(-2));
  const double scale = 1.0 / std::sqrt(double(q.size(2)));
  return (state * (q.to(dtype) * scale).unsqueeze(-1)).sum(2).to(q.scalar_type());
}

}  // namespace laplace::ops

TORCH_LIBRARY_IMPL(laplace, CompositeExplicitAutograd, library) {
  library.impl("gla_step_forward", laplace::ops::gla_step_portable);
}
