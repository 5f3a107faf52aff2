// gla_output in ATen operators only, computed in float32 (float64) and rounded once.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "ops/common.h"
#include "ops/gla_output/gla_output.h"

namespace laplace::ops {

namespace {

// head_norm [tiers,dv] -> a row per head [H,dv].
at::Tensor per_head(const at::Tensor& head_norm, int64_t H, at::ScalarType dtype) {
  const int64_t tiers = head_norm.size(0), dv = head_norm.size(1);
  return head_norm.to(dtype).unsqueeze(1).expand({tiers, H / tiers, dv}).reshape({H, dv});
}

}  // namespace

at::Tensor gla_output_forward_portable(const at::Tensor& o, const at::Tensor& q,
                                       const at::Tensor& k, const at::Tensor& v,
                                       const at::Tensor& g, const at::Tensor& aug_balance,
                                       const at::Tensor& head_norm, double eps) {
  const auto dtype = sum_dtype(o.scalar_type());
  const at::Tensor dot =
      (q.to(dtype) * k.to(dtype)).mul_(aug_balance.to(dtype)).sum(-1, /*keepdim=*/true);
  const at::Tensor z = (v.to(dtype) * dot.sigmoid_()).add_(o.to(dtype));
  const at::Tensor rstd = (z * z).mean(-1, true).add_(eps).rsqrt_();
  at::Tensor y = at::silu(g.to(dtype));
  y.mul_(z).mul_(rstd).mul_(per_head(head_norm, o.size(2), dtype));
  return y.to(o.scalar_type());
}

// With u = z rstd, n = u w, y = n silu(g):
//   dg = dy n silu'(g)     du = dy silu(g) w      dz = rstd (du - u mean(du u))      dw = sum dy
//   silu(g) u do = dz      dv = p dz      d(dot) = p (1-p) dz . v      dq = d(dot) a k  ...    with
//   p = sigmoid(dot)
std::tuple<at::Tensor, at::Tensor, at::Tensor> gla_output_backward_portable(
    const at::Tensor& grad_y, const at::Tensor& o, const at::Tensor& q_in, const at::Tensor& k_in,
    const at::Tensor& v_in, const at::Tensor& g_in, const at::Tensor& aug_balance,
    const at::Tensor& head_norm, double eps, at::Tensor& d_q, at::Tensor& d_k, at::Tensor& d_v,
    at::Tensor& d_g) {
  const auto out = o.scalar_type();
  const auto dtype = sum_dtype(out);
  const int64_t H = o.size(2), dv_size = o.size(3), tiers = head_norm.size(0);
  const at::Tensor q = q_in.to(dtype), k = k_in.to(dtype), v = v_in.to(dtype), g = g_in.to(dtype),
                   a = aug_balance.to(dtype), w = per_head(head_norm, H, dtype),
                   dy = grad_y.to(dtype);

  const at::Tensor qk = q * k;
  const at::Tensor p = (qk * a).sum(-1, true).sigmoid_();  // [B,T,H,1]
  const at::Tensor z = (v * p).add_(o.to(dtype));
  const at::Tensor rstd = (z * z).mean(-1, true).add_(eps).rsqrt_();
  const at::Tensor u = z * rstd;

  const at::Tensor s = at::sigmoid(g);
  const at::Tensor silu = g * s;
  const at::Tensor d_silu = (silu * (1 - s)).add_(s);
  const at::Tensor dg = (dy * u).mul_(w).mul_(d_silu);
  const at::Tensor dn = dy * silu;
  const at::Tensor dw =
      (dn * u).sum(at::IntArrayRef{0, 1}).view({tiers, H / tiers, dv_size}).sum(1);
  const at::Tensor du = dn * w;
  const at::Tensor dz = (du - u * (du * u).mean(-1, true)).mul_(rstd);

  const at::Tensor d_dot = (dz * v).sum(-1, true).mul_(p).mul_(1 - p);  // [B,T,H,1]
  const at::Tensor d_a = (qk * d_dot).sum(at::IntArrayRef{0, 1});
  const at::Tensor scaled = a * d_dot;
  d_q.copy_(scaled * k);
  d_k.copy_(scaled * q);
  d_v.copy_(dz * p);
  d_g.copy_(dg);
  return {dz.to(out), d_a.to(aug_balance.scalar_type()), dw.to(head_norm.scalar_type())};
}

}  // namespace laplace::ops

TORCH_LIBRARY_IMPL(laplace, CompositeExplicitAutograd, library) {
  library.impl("gla_output_forward", laplace::ops::gla_output_forward_portable);
  library.impl("gla_output_backward", laplace::ops::gla_output_backward_portable);
}
