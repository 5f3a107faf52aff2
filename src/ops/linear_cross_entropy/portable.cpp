// linear_cross_entropy in ATen operators only, block by block of tokens.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>

#include "ops/common.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"

namespace laplace::ops {

namespace {

// Logits less the largest of their row. log p = shifted - log(sum exp(shifted)); the sum is
// at::sum's, pairwise: the one inside log_softmax runs along the row and is off by 2e-5 at 50,000
// columns.
at::Tensor shifted_logits(const at::Tensor& x, const at::Tensor& weight, at::ScalarType dtype) {
  const at::Tensor logits = at::mm(x, weight.t()).to(dtype);
  return logits - logits.amax(1, /*keepdim=*/true);
}

}  // namespace

int64_t linear_cross_entropy_block(int64_t n, int64_t V) {
  constexpr int64_t kCached = int64_t{1} << 22, kMost = int64_t{1} << 26, kRows = 640;
  const int64_t rows = std::max(kCached / V, std::min(kRows, kMost / V));
  return std::min(std::max<int64_t>(rows, 16), n);
}

// d loss / d logits of a block = (softmax - onehot(target)) / n; nll_loss picks the targets.
std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_cross_entropy_forward_portable(
    const at::Tensor& x, const at::Tensor& weight, const at::Tensor& target, bool gradients) {
  const auto dtype = sum_dtype(x.scalar_type());
  const int64_t n = x.size(0), V = weight.size(0), rows = linear_cross_entropy_block(n, V);
  at::Tensor loss = at::zeros({}, x.options().dtype(dtype)), dx, dw;
  if (gradients) dx = at::empty_like(x);
  const at::Tensor scale = at::full({}, 1.0 / double(n), loss.options());
  for (int64_t first = 0; first < n; first += rows) {
    const int64_t last = std::min(first + rows, n);
    const at::Tensor x_block = x.slice(0, first, last), wanted = target.slice(0, first, last);
    const at::Tensor shifted = shifted_logits(x_block, weight, dtype);
    const auto [minus_targets, total] =
        at::nll_loss_forward(shifted, wanted, {}, at::Reduction::Sum, /*ignore_index=*/-100);
    at::Tensor p = shifted.exp();
    const at::Tensor sums = p.sum(1, /*keepdim=*/true);
    loss = loss + (minus_targets + sums.log().sum()) * scale;
    if (!gradients) continue;
    const at::Tensor minus_targets_gradient =
        at::nll_loss_backward(scale, shifted, wanted, {}, at::Reduction::Sum, -100, total);
    const at::Tensor d_logits =
        p.mul_(scale / sums).add_(minus_targets_gradient).to(x.scalar_type());
    dx.slice(0, first, last).copy_(at::mm(d_logits, weight));
    const at::Tensor dw_block = at::mm(d_logits.t(), x_block);
    dw = dw.defined() ? dw.add_(dw_block) : dw_block.to(dtype);
  }
  return {loss, dx, dw};
}

at::Tensor linear_log_prob_portable(const at::Tensor& x, const at::Tensor& weight,
                                    const at::Tensor& target) {
  const auto dtype = sum_dtype(x.scalar_type());
  const int64_t n = x.size(0), rows = linear_cross_entropy_block(n, weight.size(0));
  std::vector<at::Tensor> blocks;
  for (int64_t first = 0; first < n; first += rows) {
    const int64_t last = std::min(first + rows, n);
    const at::Tensor shifted = shifted_logits(x.slice(0, first, last), weight, dtype);
    const at::Tensor wanted = shifted.gather(1, target.slice(0, first, last).unsqueeze(1));
    blocks.push_back(wanted.squeeze(1) - shifted.exp().sum(1).log());
  }
  return at::cat(blocks);
}

}  // namespace laplace::ops

TORCH_LIBRARY_IMPL(laplace, CompositeExplicitAutograd, library) {
  library.impl("linear_cross_entropy_forward", laplace::ops::linear_cross_entropy_forward_portable);
  library.impl("linear_log_prob_forward", laplace::ops::linear_log_prob_portable);
}
