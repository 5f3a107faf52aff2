// linear_cross_entropy's schema, checks and autograd node; see linear_cross_entropy.h.
#include "ops/linear_cross_entropy/linear_cross_entropy.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/mul.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/common.h"

namespace laplace::ops {

std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_cross_entropy_forward(
    const at::Tensor& x, const at::Tensor& weight, const at::Tensor& target, bool gradients) {
  static const auto entry =
      dispatcher_entry<LinearCrossEntropyForward>("laplace::linear_cross_entropy_forward");
  return entry.call(x, weight, target, gradients);
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void check(const char* op, const at::Tensor& x, const at::Tensor& weight,
           const at::Tensor& target) {
  check_floating(op, "x", x);
  check_shape(op, "x", x, {-1, -1});
  check_shape(op, "weight", weight, {-1, x.size(1)});
  check_dtype(op, "weight", weight, x.scalar_type());
  check_shape(op, "target", target, {x.size(0)});
  check_dtype(op, "target", target, at::kLong);
  TORCH_CHECK(x.size(0) > 0 && x.size(1) > 0 && weight.size(0) > 0, "laplace::", op,
              ": x has shape ", x.sizes(), " and weight ", weight.sizes(),
              ", but no size may be 0");
}

class LinearCrossEntropyNode : public torch::autograd::Function<LinearCrossEntropyNode> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& x,
                               const at::Tensor& weight, const at::Tensor& target) {
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [loss, dx, dw] = linear_cross_entropy_forward(x, weight, target, /*gradients=*/true);
    context->save_for_backward({dx, dw});
    return {loss};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto dtype = saved[0].scalar_type();
    const auto scaled = [&](const at::Tensor& t) {
      return at::mul(t, grads[0].to(t.scalar_type())).to(dtype);
    };
    return {scaled(saved[0]), scaled(saved[1]), at::Tensor()};
  }
};

at::Tensor plain(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& target) {
  check("linear_cross_entropy", x, weight, target);
  return std::get<0>(linear_cross_entropy_forward(x, weight, target, /*gradients=*/false));
}

at::Tensor differentiable(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& target) {
  const OptionalTensor x_in = x, weight_in = weight;
  if (!any_requires_grad({&x_in, &weight_in})) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return plain(x, weight, target);
  }
  check("linear_cross_entropy", x, weight, target);
  return LinearCrossEntropyNode::apply(x, weight, target)[0];
}

at::Tensor plain_log_prob(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& target) {
  check("linear_log_prob", x, weight, target);
  static const auto entry = dispatcher_entry<LinearLogProb>("laplace::linear_log_prob_forward");
  return entry.call(x, weight, target);
}

at::Tensor log_prob_without_gradients(const at::Tensor& x, const at::Tensor& weight,
                                      const at::Tensor& target) {
  const OptionalTensor x_in = x, weight_in = weight;
  check_no_gradients("linear_log_prob", {&x_in, &weight_in});
  const at::AutoDispatchBelowADInplaceOrView below;
  return plain_log_prob(x, weight, target);
}

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight,
                                const at::Tensor& target) {
  static const auto entry = dispatcher_entry<LinearLogProb>("laplace::linear_cross_entropy");
  return entry.call(x, weight, target);
}

at::Tensor linear_log_prob(const at::Tensor& x, const at::Tensor& weight,
                           const at::Tensor& target) {
  static const auto entry = dispatcher_entry<LinearLogProb>("laplace::linear_log_prob");
  return entry.call(x, weight, target);
}

}  // namespace laplace::ops

TORCH_LIBRARY_FRAGMENT(laplace, library) {
  library.def("linear_cross_entropy(Tensor x, Tensor weight, Tensor target) -> Tensor");
  library.def("linear_log_prob(Tensor x, Tensor weight, Tensor target) -> Tensor");
  library.def(
      "linear_cross_entropy_forward(Tensor x, Tensor weight, Tensor target, bool gradients) -> "
      "(Tensor, Tensor, Tensor)");
  library.def("linear_log_prob_forward(Tensor x, Tensor weight, Tensor target) -> Tensor");
}

TORCH_LIBRARY_IMPL(laplace, CompositeExplicitAutograd, library) {
  library.impl("linear_cross_entropy", laplace::ops::plain);
  library.impl("linear_log_prob", laplace::ops::plain_log_prob);
}

TORCH_LIBRARY_IMPL(laplace, Autograd, library) {
  library.impl("linear_cross_entropy", laplace::ops::differentiable);
  library.impl("linear_log_prob", laplace::ops::log_prob_without_gradients);
}
