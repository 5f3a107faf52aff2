// The gated unit of the MLP: y = SiLU(gate) * up, with gate and up the halves of the last axis.
//
// Source: Shazeer, "GLU Variants Improve Transformer" (arXiv 2002.05202). SiLU(x) = x sigmoid(x).
#pragma once

#include <ATen/core/Tensor.h>

namespace laplace::ops {

// gate_up [..,2F] -> [..,F], float64, float32 or bfloat16. Differentiable. Throws c10::Error.
at::Tensor swiglu(const at::Tensor& gate_up);

// What a device implements.
using SwigluForward = at::Tensor(const at::Tensor& gate_up);
using SwigluBackward = at::Tensor(const at::Tensor& grad_y, const at::Tensor& gate_up);

// Through the dispatcher, below autograd: what the autograd node and the model's own backward call.
SwigluForward swiglu_forward;
SwigluBackward swiglu_backward;

// The form in ATen operators, for every device and dtype.
SwigluForward swiglu_forward_portable;
SwigluBackward swiglu_backward_portable;

}  // namespace laplace::ops
