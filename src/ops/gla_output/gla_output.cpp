// gla_output's schema, checks and autograd node; see gla_output.h.
#include "ops/gla_output/gla_output.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/common.h"

namespace laplace::ops {

at::Tensor gla_output_forward(const at::Tensor& o, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const at::Tensor& g,
                              const at::Tensor& aug_balance, const at::Tensor& head_norm,
                              double eps) {
  static const auto entry = dispatcher_entry<GlaOutputForward>("laplace::gla_output_forward");
  return entry.call(o, q, k, v, g, aug_balance, head_norm, eps);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> gla_output_backward(
    const at::Tensor& grad_y, const at::Tensor& o, const at::Tensor& q, const at::Tensor& k,
    const at::Tensor& v, const at::Tensor& g, const at::Tensor& aug_balance,
    const at::Tensor& head_norm, double eps, at::Tensor& d_q, at::Tensor& d_k, at::Tensor& d_v,
    at::Tensor& d_g) {
  static const auto entry = dispatcher_entry<GlaOutputBackward>("laplace::gla_output_backward");
  return entry.call(grad_y, o, q, k, v, g, aug_balance, head_norm, eps, d_q, d_k, d_v, d_g);
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void check(const at::Tensor& o, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
           const at::Tensor& g, const at::Tensor& aug_balance, const at::Tensor& head_norm) {
  constexpr auto kOp = "gla_output";
  check_floating(kOp, "o", o);
  check_shape(kOp, "o", o, {-1, -1, -1, -1});
  const int64_t B = o.size(0), T = o.size(1), H = o.size(2), dv = o.size(3);
  check_shape(kOp, "q", q, {B, T, H, -1});
  const int64_t dk = q.size(3);
  check_shape(kOp, "k", k, {B, T, H, dk});
  check_shape(kOp, "v", v, {B, T, H, dv});
  check_shape(kOp, "g", g, {B, T, H, dv});
  for (const auto& [name, tensor] : {std::pair{"q", &q}, {"k", &k}, {"v", &v}, {"g", &g}}) {
    check_dtype(kOp, name, *tensor, o.scalar_type());
  }
  check_floating(kOp, "aug_balance", aug_balance);
  check_shape(kOp, "aug_balance", aug_balance, {H, dk});
  check_floating(kOp, "head_norm", head_norm);
  check_shape(kOp, "head_norm", head_norm, {-1, dv});
  const int64_t tiers = head_norm.size(0);
  TORCH_CHECK(tiers > 0 && H % tiers == 0, "laplace::gla_output: head_norm has ", tiers,
              " tiers, which do not divide the ", H, " heads");
}

class GlaOutputNode : public torch::autograd::Function<GlaOutputNode> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& o, const at::Tensor& q,
                               const at::Tensor& k, const at::Tensor& v, const at::Tensor& g,
                               const at::Tensor& aug_balance, const at::Tensor& head_norm,
                               double eps) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({o, q, k, v, g, aug_balance, head_norm});
    context->saved_data["eps"] = eps;
    return {gla_output_forward(o, q, k, v, g, aug_balance, head_norm, eps)};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto s = context->get_saved_variables();
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto like = [](const at::Tensor& x) {
      return at::empty_like(x, {}, at::MemoryFormat::Contiguous);
    };
    at::Tensor d_q = like(s[1]), d_k = like(s[2]), d_v = like(s[3]), d_g = like(s[4]);
    auto [d_o, d_balance, d_norm] =
        gla_output_backward(grads[0], s[0], s[1], s[2], s[3], s[4], s[5], s[6],
                            context->saved_data["eps"].toDouble(), d_q, d_k, d_v, d_g);
    return {d_o, d_q, d_k, d_v, d_g, d_balance, d_norm, at::Tensor()};
  }
};

at::Tensor plain(const at::Tensor& o, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                 const at::Tensor& g, const at::Tensor& aug_balance, const at::Tensor& head_norm,
                 double eps) {
  check(o, q, k, v, g, aug_balance, head_norm);
  return gla_output_forward(o, q, k, v, g, aug_balance, head_norm, eps);
}

at::Tensor differentiable(const at::Tensor& o, const at::Tensor& q, const at::Tensor& k,
                          const at::Tensor& v, const at::Tensor& g, const at::Tensor& aug_balance,
                          const at::Tensor& head_norm, double eps) {
  check(o, q, k, v, g, aug_balance, head_norm);
  return GlaOutputNode::apply(o, q, k, v, g, aug_balance, head_norm, eps)[0];
}

}  // namespace

at::Tensor gla_output(const at::Tensor& o, const at::Tensor& q, const at::Tensor& k,
                      const at::Tensor& v, const at::Tensor& g, const at::Tensor& aug_balance,
                      const at::Tensor& head_norm, double eps) {
  static const auto entry = dispatcher_entry<GlaOutputForward>("laplace::gla_output");
  return entry.call(o, q, k, v, g, aug_balance, head_norm, eps);
}

}  // namespace laplace::ops

TORCH_LIBRARY_FRAGMENT(laplace, library) {
  library.def(
      "gla_output(Tensor o, Tensor q, Tensor k, Tensor v, Tensor g, Tensor aug_balance, Tensor "
      "head_norm, float eps) -> Tensor");
  library.def(
      "gla_output_forward(Tensor o, Tensor q, Tensor k, Tensor v, Tensor g, Tensor aug_balance, "
      "Tensor head_norm, float eps) -> Tensor");
  library.def(
      "gla_output_backward(Tensor grad_y, Tensor o, Tensor q, Tensor k, Tensor v, Tensor g, Tensor "
      "aug_balance, Tensor head_norm, float eps, Tensor(a!) d_q, Tensor(b!) d_k, Tensor(c!) d_v, "
      "Tensor(d!) d_g) -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(laplace, CompositeExplicitAutograd, library) {
  library.impl("gla_output", laplace::ops::plain);
}

TORCH_LIBRARY_IMPL(laplace, Autograd, library) {
  library.impl("gla_output", laplace::ops::differentiable);
}
