// What follows the recurrence: self-augmentation, RMS normalisation per head by tier, and the gate.
//
//   z = o + sigmoid( q . (aug_balance * k) ) v          the dot over dk; q without the factor
//   dk^-1/2 y = z / sqrt(mean(z^2) + eps) * head_norm[tier] * SiLU(g)          the mean over dv
//
// Head h belongs to tier floor(h * tiers / H). Source: the publication's section on the decoder
// layer.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace laplace::ops {

// o, v, g [B,T,H,dv] and q, k [B,T,H,dk]: float64, float32 or bfloat16, one dtype, any strides.
// aug_balance [H,dk] and head_norm [tiers,dv]: that dtype or float32; tiers divides H.
// Returns y [B,T,H,dv]. Gradients: all seven tensors. Sums are float32 (float64). Throws
// c10::Error.
at::Tensor gla_output(const at::Tensor& o, const at::Tensor& q, const at::Tensor& k,
                      const at::Tensor& v, const at::Tensor& g, const at::Tensor& aug_balance,
                      const at::Tensor& head_norm, double eps);

// What a device implements.
using GlaOutputForward = at::Tensor(const at::Tensor& o, const at::Tensor& q, const at::Tensor& k,
                                    const at::Tensor& v, const at::Tensor& g,
                                    const at::Tensor& aug_balance, const at::Tensor& head_norm,
                                    double eps);
// Writes the gradients of q, k, v, g; returns those of o, aug_balance, head_norm.
using GlaOutputBackward = std::tuple<at::Tensor, at::Tensor, at::Tensor>(
    const at::Tensor& grad_y, const at::Tensor& o, const at::Tensor& q, const at::Tensor& k,
    const at::Tensor& v, const at::Tensor& g, const at::Tensor& aug_balance,
    const at::Tensor& head_norm, double eps, at::Tensor& d_q, at::Tensor& d_k, at::Tensor& d_v,
    at::Tensor& d_g);

// Through the dispatcher, below autograd: what the autograd node and the model's own backward call.
GlaOutputForward gla_output_forward;
GlaOutputBackward gla_output_backward;

// The form in ATen operators, for every device and dtype.
GlaOutputForward gla_output_forward_portable;
GlaOutputBackward gla_output_backward_portable;

}  // namespace laplace::ops
