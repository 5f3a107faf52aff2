// Gated linear attention with a fixed decay per head, chunk by chunk: training and prefill.
//
//   S_t = lambda_h S_{t-1} + k_t v_t^T        o_t = dk^-1/2 S_t^T q_t        lambda_h =
//   exp(log_decay_h)
//
// A chunk of C tokens with rows i, j = 1..C and the state S entering it gives
//
//   O_i = dk^-1/2 ( sum_{j<=i} lambda^{i-j} (q_i . k_j) v_j  +  lambda^i S^T q_i )
//   S'  = lambda^C S + sum_j lambda^{C-j} k_j v_j^T
//
// Powers of lambda are exp(log_decay * n) with n >= 0, so nothing overflows. Any C gives the same
// result up to rounding. A token with doc_start begins a document: S is zero before it.
//
// Source: Yang et al., "Gated Linear Attention Transformers with Hardware-Efficient Training"
// (arXiv 2312.06635), section 4, with a decay that is constant per head.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace laplace::ops {

// q, k [B,T,H,dk] and v [B,T,H,dv]: float64, float32 or bfloat16, one dtype, any strides.
// log_decay [H]: float32 on the host; a constant, it has no gradient.
// state [B,H,dk,dv]: float32 (float64 with float64 inputs); absent: zero.
// doc_start [B,T]: bool or integer; absent: no boundaries.
// Returns o [B,T,H,dv] in q's dtype, and the state after the last token in the state's dtype.
// Gradients: q, k, v, state. Sums and states are float32 (float64). Throws c10::Error.
std::tuple<at::Tensor, at::Tensor> gla_chunk(const at::Tensor& q, const at::Tensor& k,
                                             const at::Tensor& v, const at::Tensor& log_decay,
                                             const std::optional<at::Tensor>& state,
                                             const std::optional<at::Tensor>& doc_start,
                                             int64_t chunk_size);

// The two halves a device implements (`laplace::gla_chunk_forward`, `laplace::gla_chunk_backward`).
// chunk_states [B,H,N,dk,dv] float32 (float64): the state entering each chunk, kept for backward. A
// device may take smaller chunks than chunk_size: N is its own.
using GlaChunkForward = std::tuple<at::Tensor, at::Tensor, at::Tensor>(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& log_decay,
    const std::optional<at::Tensor>& state, const std::optional<at::Tensor>& doc_start,
    int64_t chunk_size);
// grad_o as o, grad_state_out as state (absent: zero). Writes the gradients of q, k, v, or adds
// them to what d_q, d_k, d_v hold with `accumulate`; returns that of the state.
using GlaChunkBackward = at::Tensor(const at::Tensor& grad_o,
                                    const std::optional<at::Tensor>& grad_state_out,
                                    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                    const at::Tensor& log_decay, const at::Tensor& chunk_states,
                                    const std::optional<at::Tensor>& doc_start, int64_t chunk_size,
                                    bool accumulate, at::Tensor& d_q, at::Tensor& d_k,
                                    at::Tensor& d_v);

// Through the dispatcher, below autograd: what the autograd node and the model's own backward call.
GlaChunkForward gla_chunk_forward;
GlaChunkBackward gla_chunk_backward;

// The form in ATen operators, for every device and dtype.
GlaChunkForward gla_chunk_forward_portable;
GlaChunkBackward gla_chunk_backward_portable;

}  // namespace laplace::ops
