// One token of the recurrence for B slots, in place on their states: decoding.
//
//   S <- lambda_h S + k v^T        o = dk^-1/2 S^T q        lambda_h = exp(log_decay_h)
#pragma once

#include <ATen/core/Tensor.h>

namespace laplace::ops {

// q, k [B,H,dk] and v [B,H,dv]: float64, float32 or bfloat16, one dtype.
// log_decay [H]: float32 on the host. state [B,H,dk,dv]: float32 (float64), overwritten.
// Returns o [B,H,dv] in q's dtype. No gradients. Throws c10::Error.
at::Tensor gla_step(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    const at::Tensor& log_decay, at::Tensor& state);

using GlaStep = at::Tensor(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const at::Tensor& log_decay, at::Tensor& state);

// The form in ATen operators, for every device and dtype.
GlaStep gla_step_portable;

}  // namespace laplace::ops
