// layer_norm in ATen operators only. The variance is taken of the centred values (two passes): a
// one-pass variance loses everything where the mean is large.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "ops/common.h"
#include "ops/layer_norm/layer_norm.h"

namespace laplace::ops {

namespace {}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_forward_portable(
    const at::Tensor& x_in, const at::Tensor& weight, double eps,
    std::optional<at::ScalarType> out_dtype) {
  const auto dtype = sum_dtype(x_in.scalar_type());
  const at::Tensor x = x_in.to(dtype);
  const at::Tensor mean = x.mean(-1, /*keepdim=*/true);
  const at::Tensor centred = x - mean;
  const at::Tensor rstd = (centred * centred).mean(-1, true).add_(eps).rsqrt_();
  const at::Tensor y = (centred * rstd).mul_(weight.to(dtype));
  return {y.to(out_dtype.value_or(x_in.scalar_type())), mean, rstd};
}

// With u = (x - mean) rstd and du = dy * weight:  dx = rstd (du - mean(du) - u mean(du u)).
std::tuple<at::Tensor, at::Tensor> layer_norm_backward_portable(const at::Tensor& grad_y,
                                                                const at::Tensor& x,
                                                                const at::Tensor& weight,
                                                                const at::Tensor& mean,
                                                                const at::Tensor& rstd) {
  const auto dtype = rstd.scalar_type();
  const at::Tensor dy = grad_y.to(dtype);
  const at::Tensor u = (x.to(dtype) - mean).mul_(rstd);
  at::Tensor dw = dy * u;
  at::Tensor du = dy * weight.to(dtype);
  const at::Tensor along_u = (du * u).mean(-1, true);
  const at::Tensor dx = (du - du.mean(-1, true)).sub_(u * along_u).mul_(rstd);
  dw = dw.reshape({-1, x.size(-1)}).sum(0);
  return {dx.to(x.scalar_type()), dw.to(weight.scalar_type())};
}

}  // namespace laplace::ops

TORCH_LIBRARY_IMPL(laplace, CompositeExplicitAutograd, library) {
  library.impl("layer_norm_forward", laplace::ops::layer_norm_forward_portable);
  library.impl("layer_norm_backward", laplace::ops::layer_norm_backward_portable);
}
