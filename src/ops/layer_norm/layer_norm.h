// Layer normalisation with a weight and no bias, over the last axis:
//
//   y = (x - mean) / sqrt(var + eps) * weight          var divides by D
//
// Source: Ba, Kiros, Hinton, "Layer Normalization" (arXiv 1607.06450).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <tuple>

namespace laplace::ops {

// x [..,D] and weight [D]: float64, float32 or bfloat16; the weight may be float32 for any x.
// `out_dtype`: dtype of y, x's by default (a float32 residual stream gives bfloat16 activations).
// Gradients: x, weight. Sums are float32 (float64). Throws c10::Error.
at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, double eps,
                      std::optional<at::ScalarType> out_dtype = std::nullopt);

// What a device implements. mean and rstd [..,1] in the sums' dtype are kept for backward.
using LayerNormForward = std::tuple<at::Tensor, at::Tensor, at::Tensor>(
    const at::Tensor& x, const at::Tensor& weight, double eps,
    std::optional<at::ScalarType> out_dtype);
using LayerNormBackward = std::tuple<at::Tensor, at::Tensor>(const at::Tensor& grad_y,
                                                             const at::Tensor& x,
                                                             const at::Tensor& weight,
                                                             const at::Tensor& mean,
                                                             const at::Tensor& rstd);

// Through the dispatcher, below autograd: what the autograd node and the model's own backward call.
LayerNormForward layer_norm_forward;
LayerNormBackward layer_norm_backward;

// The form in ATen operators, for every device and dtype.
LayerNormForward layer_norm_forward_portable;
LayerNormBackward layer_norm_backward_portable;

}  // namespace laplace::ops
