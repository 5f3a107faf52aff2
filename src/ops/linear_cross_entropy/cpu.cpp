// linear_cross_entropy on the CPU: products of a block of tokens, and the fused kernel between
// them.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <numeric>

#include "ops/cpu.h"
#include "ops/linear_cross_entropy/kernel.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"

namespace laplace::ops {

namespace {

void softmax_block(const at::Tensor& logits, const int64_t* target, float scale, bool gradients,
                   double* losses) {
  const int64_t V = logits.size(1);
  with_element(logits.scalar_type(), [&]<class T>(T*) {
    const auto kernel = cross_entropy_kernel<T>();
    at::parallel_for(0, logits.size(0), 1, [&](int64_t begin, int64_t end) {
      std::vector<float> exps(static_cast<size_t>(V));
      kernel(V, written<T>(logits), target, scale, gradients, exps.data(), losses, begin, end);
    });
  });
}

// A target is an index into memory here; the other devices look at theirs by themselves.
void check_targets(const at::Tensor& target, int64_t V) {
  const int64_t* const data = read<int64_t>(target);
  for (int64_t i = 0; i < target.numel(); ++i) {
    TORCH_CHECK_INDEX(data[i] >= 0 && data[i] < V, "laplace::linear_cross_entropy: target[", i,
                      "] is ", data[i], ", but must lie in [0, ", V, "); no value is left out");
  }
}

// Calls body(first, last, logits) for every block of tokens, with logits that it may overwrite.
template <class Body>
void for_blocks(const at::Tensor& x, const at::Tensor& weight, const Body& body) {
  const int64_t n = x.size(0), V = weight.size(0), rows = linear_cross_entropy_block(n, V);
  const at::Tensor buffer = at::empty({rows, V}, x.options());
  for (int64_t first = 0; first < n; first += rows) {
    const int64_t last = std::min(first + rows, n);
    at::Tensor logits = buffer.narrow(0, 0, last - first);
    at::mm_out(logits, x.slice(0, first, last), weight.t());
    body(first, last, logits);
  }
}

// dw += d_logits^T x, in float32.
void add_weight_gradient(const at::Tensor& d_logits, const at::Tensor& x, bool first_block,
                         at::Tensor& dw) {
  if (x.scalar_type() == at::kFloat) {
    at::addmm_out(dw, dw, d_logits.t(), x, first_block ? 0 : 1, 1);
  } else {
    const at::Tensor share = at::mm(d_logits.t(), x);
    first_block ? dw.copy_(share) : dw.add_(share);
  }
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> forward(const at::Tensor& x,
                                                       const at::Tensor& weight,
                                                       const at::Tensor& target_in,
                                                       bool gradients) {
  const at::Tensor target = target_in.contiguous();
  check_targets(target, weight.size(0));
  if (!takes_fused(x)) return linear_cross_entropy_forward_portable(x, weight, target, gradients);
  const int64_t n = x.size(0);
  const auto floats = x.options().dtype(at::kFloat);
  at::Tensor dx, dw;
  if (gradients) {
    dx = at::empty(x.sizes(), x.options());
    dw = at::empty(weight.sizes(), floats);
  }
  std::vector<double> losses(static_cast<size_t>(n));
  for_blocks(x, weight, [&](int64_t first, int64_t last, const at::Tensor& logits) {
    softmax_block(logits, read<int64_t>(target) + first, float(1.0 / double(n)), gradients,
                  losses.data() + first);
    if (!gradients) return;
    at::Tensor dx_block = dx.slice(0, first, last);
    at::mm_out(dx_block, logits, weight);
    add_weight_gradient(logits, x.slice(0, first, last), first == 0, dw);
  });
  const double mean = std::accumulate(losses.begin(), losses.end(), 0.0) / double(n);
  return {at::full({}, mean, floats), dx, dw};
}

at::Tensor log_prob(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& target_in) {
  const at::Tensor target = target_in.contiguous();
  check_targets(target, weight.size(0));
  if (!takes_fused(x)) return linear_log_prob_portable(x, weight, target);
  std::vector<double> losses(static_cast<size_t>(x.size(0)));
  for_blocks(x, weight, [&](int64_t first, int64_t, const at::Tensor& logits) {
    softmax_block(logits, read<int64_t>(target) + first, 0, /*gradients=*/false,
                  losses.data() + first);
  });
  return at::tensor(losses).neg_().to(at::kFloat);
}

}  // namespace

}  // namespace laplace::ops

TORCH_LIBRARY_IMPL(laplace, CPU, library) {
  library.impl("linear_cross_entropy_forward", laplace::ops::forward);
  library.impl("linear_log_prob_forward", laplace::ops::log_prob);
}
