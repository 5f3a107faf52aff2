// swiglu on the CPU: the fused kernel over blocks of rows.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include "ops/cpu.h"
#include "ops/swiglu/kernel.h"
#include "ops/swiglu/swiglu.h"

namespace laplace::ops {

namespace {

at::Tensor forward(const at::Tensor& gate_up_in) {
  if (!takes_fused(gate_up_in)) return swiglu_forward_portable(gate_up_in);
  const at::Tensor gate_up = gate_up_in.contiguous();
  std::vector<int64_t> shape(gate_up.sizes().begin(), gate_up.sizes().end());
  const int64_t F = shape.back() /= 2;
  const at::Tensor y = at::empty(shape, gate_up.options());
  with_element(y.scalar_type(), [&]<class T>(T*) {
    const auto kernel = swiglu_kernels<T>().forward;
    at::parallel_for(0, y.numel() / F, grain_of(F), [&](int64_t begin, int64_t end) {
      kernel(F, read<T>(gate_up), written<T>(y), begin, end);
    });
  });
  return y;
}

at::Tensor backward(const at::Tensor& grad_y, const at::Tensor& gate_up_in) {
  if (!takes_fused(gate_up_in)) return swiglu_backward_portable(grad_y, gate_up_in);
  const at::Tensor gate_up = gate_up_in.contiguous(),
                   dy = grad_y.to(gate_up.scalar_type()).contiguous();
  const int64_t F = dy.size(-1);
  at::Tensor d_gate_up = at::empty_like(gate_up);
  with_element(dy.scalar_type(), [&]<class T>(T*) {
    const auto kernel = swiglu_kernels<T>().backward;
    at::parallel_for(0, dy.numel() / F, grain_of(F), [&](int64_t begin, int64_t end) {
      kernel(F, read<T>(gate_up), read<T>(dy), written<T>(d_gate_up), begin, end);
    });
  });
  return d_gate_up;
}

}  // namespace

}  // namespace laplace::ops

TORCH_LIBRARY_IMPL(laplace, CPU, library) {
  library.impl("swiglu_forward", laplace::ops::forward);
  library.impl("swiglu_backward", laplace::ops::backward);
}
