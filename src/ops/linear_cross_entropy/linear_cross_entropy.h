// Head and loss in one operator, over blocks of tokens: the [n,V] logits never exist whole.
//
//   loss = mean over n of  ( logsumexp(x_n W^T) - x_n . W[target_n] )
//
// The gradients for a cotangent of 1 are made in the same pass, block by block, while the block's
// logits are at hand: backward only scales them. So nothing is recomputed and no logits are kept.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace laplace::ops {

// x [n,D] and weight [V,D]: float64, float32 or bfloat16, one dtype; target [n] int64 in [0,V).
// Returns the loss, a scalar in float32 (float64). Gradients: x, weight. Throws c10::Error.
at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight,
                                const at::Tensor& target);

// log softmax(x W^T)[target], [n] in float32 (float64): scoring, without gradients.
at::Tensor linear_log_prob(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& target);

// What a device implements: the loss and, if asked for, the gradients of x (in its dtype) and of
// weight (in float32 or float64); else empty.
using LinearCrossEntropyForward = std::tuple<at::Tensor, at::Tensor, at::Tensor>(
    const at::Tensor& x, const at::Tensor& weight, const at::Tensor& target, bool gradients);
using LinearLogProb = at::Tensor(const at::Tensor& x, const at::Tensor& weight,
                                 const at::Tensor& target);

// Through the dispatcher, below autograd: what the autograd node and the model's own backward call.
LinearCrossEntropyForward linear_cross_entropy_forward;

// Tokens of a block: as many as have 4 Mi logits, which stay in a CPU's cache, but at least 640,
// since every block reads and writes the weight's whole gradient (83 tokens at V = 50,304 took 1.5
// x as long), and at most 64 Mi logits (256 MB in float32).
int64_t linear_cross_entropy_block(int64_t n, int64_t V);

// The form in ATen operators, for every device and dtype.
LinearCrossEntropyForward linear_cross_entropy_forward_portable;
LinearLogProb linear_log_prob_portable;

}  // namespace laplace::ops
