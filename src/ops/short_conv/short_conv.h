// Causal depthwise convolution of width k over time, and SiLU:
//
//   y[t,d] = SiLU( sum_j weight[d,j] x[t-(k-1)+j, d] )          j = 0..k-1, the last tap is the
//   current token
//
// Inputs before the first token come from `window` (the k inputs before this call, oldest first;
// its oldest row has no effect). Inputs of another document count as zero, in the sum and in the
// window that is returned.
//
// Source: the short convolution of Poli et al., "Hyena Hierarchy" (arXiv 2302.10866).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace laplace::ops {

// x [B,T,D]: float64, float32 or bfloat16. weight [D,k]: x's dtype or float32.
// window [B,k,D]: float32 (float64 with float64 x); absent: zeros. doc_start [B,T]; absent: no
// boundaries. Returns y [B,T,D] in x's dtype and the window after the last token. Gradients: x,
// weight, window. Throws c10::Error.
std::tuple<at::Tensor, at::Tensor> short_conv(const at::Tensor& x, const at::Tensor& weight,
                                              const std::optional<at::Tensor>& window,
                                              const std::optional<at::Tensor>& doc_start);

// What a device implements.
using ShortConvForward = std::tuple<at::Tensor, at::Tensor>(
    const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& window,
    const std::optional<at::Tensor>& doc_start);
// grad_window_out absent: zero. Returns the gradients of x, weight and window.
using ShortConvBackward = std::tuple<at::Tensor, at::Tensor, at::Tensor>(
    const at::Tensor& grad_y, const std::optional<at::Tensor>& grad_window_out, const at::Tensor& x,
    const at::Tensor& weight, const std::optional<at::Tensor>& window,
    const std::optional<at::Tensor>& doc_start);

// Through the dispatcher, below autograd: what the autograd node and the model's own backward call.
ShortConvForward short_conv_forward;
ShortConvBackward short_conv_backward;

// The form in ATen operators, for every device and dtype.
ShortConvForward short_conv_forward_portable;
ShortConvBackward short_conv_backward_portable;

}  // namespace laplace::ops
