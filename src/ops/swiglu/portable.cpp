// swiglu in ATen operators only, computed in float32 (float64) and rounded once.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "ops/common.h"
#include "ops/swiglu/swiglu.h"

namespace laplace::ops {

namespace {}  // namespace

at::Tensor swiglu_forward_portable(const at::Tensor& gate_up) {
  const auto dtype = sum_dtype(gate_up.scalar_type());
  const int64_t F = gate_up.size(-1) / 2;
  const at::Tensor gate = gate_up.narrow(-1, 0, F).to(dtype),
                   up = gate_up.narrow(-1, F, F).to(dtype);
  return at::silu(gate).mul_(up).to(gate_up.scalar_type());
}

// d silu(g) / dg = s (1 + g (1 - s)), s = sigmoid(g).
at::Tensor swiglu_backward_portable(const at::Tensor& grad_y, const at::Tensor& gate_up) {
  const auto dtype = sum_dtype(gate_up.scalar_type());
  const int64_t F = gate_up.size(-1) / 2;
  const at::Tensor gate = gate_up.narrow(-1, 0, F).to(dtype),
                   up = gate_up.narrow(-1, F, F).to(dtype);
  const at::Tensor dy = grad_y.to(dtype);
  const at::Tensor s = at::sigmoid(gate);
  const at::Tensor silu = gate * s;
  const at::Tensor d_silu = (silu * (1 - s)).add_(s);
  return at::cat({(dy * up).mul_(d_silu), dy * silu}, -1).to(gate_up.scalar_type());
}

}  // namespace laplace::ops

TORCH_LIBRARY_IMPL(laplace, CompositeExplicitAutograd, library) {
  library.impl("swiglu_forward", laplace::ops::swiglu_forward_portable);
  library.impl("swiglu_backward", laplace::ops::swiglu_backward_portable);
}
