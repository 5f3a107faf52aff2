// layer_norm's schema, checks and autograd node; see layer_norm.h.
#include "ops/layer_norm/layer_norm.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/common.h"

namespace laplace::ops {

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_forward(
    const at::Tensor& x, const at::Tensor& weight, double eps,
    std::optional<at::ScalarType> out_dtype) {
  static const auto entry = dispatcher_entry<LayerNormForward>("laplace::layer_norm_forward");
  return entry.call(x, weight, eps, out_dtype);
}

std::tuple<at::Tensor, at::Tensor> layer_norm_backward(const at::Tensor& grad_y,
                                                       const at::Tensor& x,
                                                       const at::Tensor& weight,
                                                       const at::Tensor& mean,
                                                       const at::Tensor& rstd) {
  static const auto entry = dispatcher_entry<LayerNormBackward>("laplace::layer_norm_backward");
  return entry.call(grad_y, x, weight, mean, rstd);
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void check(const at::Tensor& x, const at::Tensor& weight) {
  constexpr auto kOp = "layer_norm";
  check_floating(kOp, "x", x);
  check_floating(kOp, "weight", weight);
  TORCH_CHECK(x.dim() >= 1 && x.size(-1) > 0, "laplace::layer_norm: x has shape ", x.sizes(),
              ", but needs a last axis of at least 1");
  check_shape(kOp, "weight", weight, {x.size(-1)});
}

class LayerNormNode : public torch::autograd::Function<LayerNormNode> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& x,
                               const at::Tensor& weight, double eps,
                               std::optional<at::ScalarType> out_dtype) {
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [y, mean, rstd] = layer_norm_forward(x, weight, eps, out_dtype);
    context->save_for_backward({x, weight, mean, rstd});
    return {y};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [dx, dw] = layer_norm_backward(grads[0], saved[0], saved[1], saved[2], saved[3]);
    return {dx, dw, at::Tensor(), at::Tensor()};
  }
};

at::Tensor plain(const at::Tensor& x, const at::Tensor& weight, double eps,
                 std::optional<at::ScalarType> out_dtype) {
  check(x, weight);
  return std::get<0>(layer_norm_forward(x, weight, eps, out_dtype));
}

at::Tensor differentiable(const at::Tensor& x, const at::Tensor& weight, double eps,
                          std::optional<at::ScalarType> out_dtype) {
  check(x, weight);
  return LayerNormNode::apply(x, weight, eps, out_dtype)[0];
}

}  // namespace

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, double eps,
                      std::optional<at::ScalarType> out_dtype) {
  static const auto entry = dispatcher_entry<decltype(plain)>("laplace::layer_norm");
  return entry.call(x, weight, eps, out_dtype);
}

}  // namespace laplace::ops

TORCH_LIBRARY_FRAGMENT(laplace, library) {
  library.def(
      "layer_norm(Tensor x, Tensor weight, float eps, ScalarType? out_dtype=None) -> Tensor");
  library.def(
      "layer_norm_forward(Tensor x, Tensor weight, float eps, ScalarType? out_dtype) -> (Tensor, "
      "Tensor, Tensor)");
  library.def(
      "layer_norm_backward(Tensor grad_y, Tensor x, Tensor weight, Tensor mean, Tensor rstd) -> "
      "(Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(laplace, CompositeExplicitAutograd, library) {
  library.impl("layer_norm", laplace::ops::plain);
}

TORCH_LIBRARY_IMPL(laplace, Autograd, library) {
  library.impl("layer_norm", laplace::ops::differentiable);
}
