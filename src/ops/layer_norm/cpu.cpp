// layer_norm on the CPU: the fused kernel over blocks of rows.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include "ops/cpu.h"
#include "ops/layer_norm/kernel.h"
#include "ops/layer_norm/layer_norm.h"

namespace laplace::ops {

namespace {

// Calls `body` with null pointers of the element types of x and y.
template <class Body>
void with_elements(at::ScalarType x, at::ScalarType y, const Body& body) {
  with_element(x,
               [&](auto* x_type) { with_element(y, [&](auto* y_type) { body(x_type, y_type); }); });
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> forward(const at::Tensor& x_in,
                                                       const at::Tensor& weight, double eps,
                                                       std::optional<at::ScalarType> out_dtype) {
  const auto y_dtype = out_dtype.value_or(x_in.scalar_type());
  if (!takes_fused(x_in) || y_dtype == at::kDouble) {
    return layer_norm_forward_portable(x_in, weight, eps, out_dtype);
  }
  const at::Tensor x = x_in.contiguous(), w = as_float(weight);
  std::vector<int64_t> rows_shape(x.sizes().begin(), x.sizes().end());
  rows_shape.back() = 1;
  const at::Tensor y = at::empty(x.sizes(), x.options().dtype(y_dtype)),
                   mean = at::empty(rows_shape, w.options()), rstd = at::empty_like(mean);
  with_elements(x.scalar_type(), y_dtype, [&]<class X, class Y>(X*, Y*) {
    LayerNormRows<X, Y> a{};
    a.D = x.size(-1);
    a.eps = eps;
    a.x = read<X>(x);
    a.weight = read<float>(w);
    a.mean = written<float>(mean);
    a.rstd = written<float>(rstd);
    a.y = written<Y>(y);
    const auto kernel = layer_norm_kernels<X, Y>().forward;
    at::parallel_for(0, mean.numel(), grain_of(a.D),
                     [&](int64_t begin, int64_t end) { kernel(a, begin, end); });
  });
  return {y, mean, rstd};
}

std::tuple<at::Tensor, at::Tensor> backward(const at::Tensor& grad_y, const at::Tensor& x_in,
                                            const at::Tensor& weight, const at::Tensor& mean,
                                            const at::Tensor& rstd) {
  if (!takes_fused(x_in) || !takes_fused(grad_y)) {
    return layer_norm_backward_portable(grad_y, x_in, weight, mean, rstd);
  }
  const at::Tensor x = x_in.contiguous(), w = as_float(weight), dy = grad_y.contiguous();
  const int64_t D = x.size(-1), rows = mean.numel(), blocks = blocks_of(rows, kSumBlock);
  const at::Tensor dx = at::empty_like(x), shares = at::empty({blocks, D}, w.options());
  with_elements(x.scalar_type(), dy.scalar_type(), [&]<class X, class Y>(X*, Y*) {
    LayerNormRows<X, Y> a{};
    a.D = D;
    a.x = read<X>(x);
    a.weight = read<float>(w);
    a.mean = static_cast<float*>(mean.data_ptr());
    a.rstd = static_cast<float*>(rstd.data_ptr());
    a.dy = read<Y>(dy);
    a.dx = written<X>(dx);
    const auto kernel = layer_norm_kernels<X, Y>().backward;
    at::parallel_for(0, blocks, grain_of(kSumBlock * D), [&](int64_t first, int64_t last) {
      for (int64_t block = first; block < last; ++block) {
        kernel(a, block * kSumBlock, std::min((block + 1) * kSumBlock, rows),
               written<float>(shares) + block * D);
      }
    });
  });
  return {dx, shares.sum(0).to(weight.scalar_type())};
}

}  // namespace

}  // namespace laplace::ops

TORCH_LIBRARY_IMPL(laplace, CPU, library) {
  library.impl("layer_norm_forward", laplace::ops::forward);
  library.impl("layer_norm_backward", laplace::ops::backward);
}
