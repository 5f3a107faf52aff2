// gla_output on the CPU: the fused kernel over blocks of tokens.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include "ops/cpu.h"
#include "ops/gla_output/gla_output.h"
#include "ops/gla_output/kernel.h"

namespace laplace::ops {

namespace {

// What both directions read, kept alive while the kernel runs.
struct Inputs {
  Inputs(const at::Tensor& o_in, const at::Tensor& q_in, const at::Tensor& k_in,
         const at::Tensor& v_in, const at::Tensor& g_in, const at::Tensor& aug_balance,
         const at::Tensor& head_norm)
      : o(with_head_rows(o_in)),
        q(with_head_rows(q_in)),
        k(with_head_rows(k_in)),
        v(with_head_rows(v_in)),
        g(with_head_rows(g_in)),
        balance(as_float(aug_balance)),
        norm(as_float(head_norm).repeat_interleave(o.size(2) / head_norm.size(0), 0)) {}

  template <class T>
  GlaOutputTokens<T> tokens(double eps) const {
    GlaOutputTokens<T> a{};
    a.H = q.size(2);
    a.dk = q.size(3);
    a.dv = v.size(3);
    a.eps = eps;
    a.o = read_rows<T>(o);
    a.q = read_rows<T>(q);
    a.k = read_rows<T>(k);
    a.v = read_rows<T>(v);
    a.g = read_rows<T>(g);
    a.aug_balance = read<float>(balance);
    a.norm = read<float>(norm);
    return a;
  }

  at::Tensor o, q, k, v, g, balance, norm;
};

at::Tensor forward(const at::Tensor& o, const at::Tensor& q, const at::Tensor& k,
                   const at::Tensor& v, const at::Tensor& g, const at::Tensor& aug_balance,
                   const at::Tensor& head_norm, double eps) {
  if (!takes_fused(o)) {
    return gla_output_forward_portable(o, q, k, v, g, aug_balance, head_norm, eps);
  }
  const Inputs in(o, q, k, v, g, aug_balance, head_norm);
  const at::Tensor y = at::empty(o.sizes(), o.options());
  with_element(o.scalar_type(), [&]<class T>(T*) {
    GlaOutputTokens<T> a = in.tokens<T>(eps);
    a.y = written_rows<T>(y);
    const auto kernel = gla_output_kernels<T>().forward;
    at::parallel_for(0, o.size(0) * o.size(1), grain_of(a.H * (a.dk + a.dv)),
                     [&](int64_t begin, int64_t end) { kernel(a, begin, end); });
  });
  return y;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(
    const at::Tensor& grad_y, const at::Tensor& o, const at::Tensor& q, const at::Tensor& k,
    const at::Tensor& v, const at::Tensor& g, const at::Tensor& aug_balance,
    const at::Tensor& head_norm, double eps, at::Tensor& d_q, at::Tensor& d_k, at::Tensor& d_v,
    at::Tensor& d_g) {
  const bool rows_fit =
      has_head_rows(d_q) && has_head_rows(d_k) && has_head_rows(d_v) && has_head_rows(d_g);
  if (!takes_fused(o) || !rows_fit) {
    return gla_output_backward_portable(grad_y, o, q, k, v, g, aug_balance, head_norm, eps, d_q,
                                        d_k, d_v, d_g);
  }
  const Inputs in(o, q, k, v, g, aug_balance, head_norm);
  const at::Tensor dy = with_head_rows(grad_y.to(o.scalar_type())),
                   d_o = at::empty(o.sizes(), o.options());
  const int64_t tokens = o.size(0) * o.size(1), blocks = blocks_of(tokens, kSumBlock);
  const int64_t H = q.size(2), dk = q.size(3), dv = v.size(3), tiers = head_norm.size(0);
  const auto floats = o.options().dtype(at::kFloat);
  const at::Tensor balance_shares = at::empty({blocks, H, dk}, floats),
                   norm_shares = at::empty({blocks, H, dv}, floats);
  with_element(o.scalar_type(), [&]<class T>(T*) {
    GlaOutputTokens<T> a = in.tokens<T>(eps);
    a.dy = read_rows<T>(dy);
    a.d_o = written_rows<T>(d_o);
    a.d_q = written_rows<T>(d_q);
    a.d_k = written_rows<T>(d_k);
    a.d_v = written_rows<T>(d_v);
    a.d_g = written_rows<T>(d_g);
    const auto kernel = gla_output_kernels<T>().backward;
    at::parallel_for(0, blocks, grain_of(kSumBlock * H * (dk + dv)),
                     [&](int64_t first, int64_t last) {
                       for (int64_t block = first; block < last; ++block) {
                         kernel(a, block * kSumBlock, std::min((block + 1) * kSumBlock, tokens),
                                written<float>(balance_shares) + block * H * dk,
                                written<float>(norm_shares) + block * H * dv);
                       }
                     });
  });
  const at::Tensor d_norm = norm_shares.sum(0).view({tiers, H / tiers, dv}).sum(1);
  return {d_o, balance_shares.sum(0).to(aug_balance.scalar_type()),
          d_norm.to(head_norm.scalar_type())};
}

}  // namespace

}  // namespace laplace::ops

TORCH_LIBRARY_IMPL(laplace, CPU, library) {
  library.impl("gla_output_forward", laplace::ops::forward);
  library.impl("gla_output_backward", laplace::ops::backward);
}
