// short_conv's schema, checks and autograd node; see short_conv.h.
#include "ops/short_conv/short_conv.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/common.h"

namespace laplace::ops {

std::tuple<at::Tensor, at::Tensor> short_conv_forward(const at::Tensor& x, const at::Tensor& weight,
                                                      const OptionalTensor& window,
                                                      const OptionalTensor& doc_start) {
  static const auto entry = dispatcher_entry<ShortConvForward>("laplace::short_conv_forward");
  return entry.call(x, weight, window, doc_start);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> short_conv_backward(
    const at::Tensor& grad_y, const std::optional<at::Tensor>& grad_window_out, const at::Tensor& x,
    const at::Tensor& weight, const std::optional<at::Tensor>& window,
    const std::optional<at::Tensor>& doc_start) {
  static const auto entry = dispatcher_entry<ShortConvBackward>("laplace::short_conv_backward");
  return entry.call(grad_y, grad_window_out, x, weight, window, doc_start);
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void check(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& window,
           const OptionalTensor& doc_start) {
  constexpr auto kOp = "short_conv";
  check_floating(kOp, "x", x);
  check_floating(kOp, "weight", weight);
  check_shape(kOp, "x", x, {-1, -1, -1});
  const int64_t B = x.size(0), T = x.size(1), D = x.size(2);
  TORCH_CHECK(B > 0 && T > 0 && D > 0, "laplace::short_conv: x has shape ", x.sizes(),
              ", but no size may be 0");
  check_shape(kOp, "weight", weight, {D, -1});
  TORCH_CHECK(weight.size(1) > 0, "laplace::short_conv: weight has shape ", weight.sizes(),
              ", but needs a width of at least 1");
  if (window) {
    check_shape(kOp, "window", *window, {B, weight.size(1), D});
    check_dtype(kOp, "window", *window, sum_dtype(x.scalar_type()));
  }
  check_doc_start(kOp, doc_start, B, T);
}

class ShortConvNode : public torch::autograd::Function<ShortConvNode> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& x,
                               const at::Tensor& weight, const OptionalTensor& window,
                               const OptionalTensor& doc_start) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward(
        {x, weight, window.value_or(at::Tensor()), doc_start.value_or(at::Tensor())});
    context->set_materialize_grads(false);
    auto [y, window_out] = short_conv_forward(x, weight, window, doc_start);
    return {y, window_out};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const auto optional = [](const at::Tensor& t) {
      return t.defined() ? OptionalTensor(t) : std::nullopt;
    };
    const at::Tensor grad_y = grads[0].defined() ? grads[0] : at::zeros_like(saved[0]);
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [dx, dw, dwindow] = short_conv_backward(grad_y, optional(grads[1]), saved[0], saved[1],
                                                 optional(saved[2]), optional(saved[3]));
    if (!saved[2].defined()) dwindow = at::Tensor();
    return {dx, dw, dwindow, at::Tensor()};
  }
};

std::tuple<at::Tensor, at::Tensor> plain(const at::Tensor& x, const at::Tensor& weight,
                                         const OptionalTensor& window,
                                         const OptionalTensor& doc_start) {
  check(x, weight, window, doc_start);
  return short_conv_forward(x, weight, window, doc_start);
}

std::tuple<at::Tensor, at::Tensor> differentiable(const at::Tensor& x, const at::Tensor& weight,
                                                  const OptionalTensor& window,
                                                  const OptionalTensor& doc_start) {
  check(x, weight, window, doc_start);
  const auto out = ShortConvNode::apply(x, weight, window, doc_start);
  return {out[0], out[1]};
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> short_conv(const at::Tensor& x, const at::Tensor& weight,
                                              const OptionalTensor& window,
                                              const OptionalTensor& doc_start) {
  static const auto entry = dispatcher_entry<decltype(plain)>("laplace::short_conv");
  return entry.call(x, weight, window, doc_start);
}

}  // namespace laplace::ops

TORCH_LIBRARY_FRAGMENT(laplace, library) {
  library.def(
      "short_conv(Tensor x, Tensor weight, Tensor? window, Tensor? doc_start) -> (Tensor, Tensor)");
  library.def(
      "short_conv_forward(Tensor x, Tensor weight, Tensor? window, Tensor? doc_start) -> (Tensor, "
      "Tensor)");
  library.def(
      "short_conv_backward(Tensor grad_y, Tensor? grad_window_out, Tensor x, Tensor weight, "
      "Tensor? "
      "window, Tensor? doc_start) -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(laplace, CompositeExplicitAutograd, library) {
  library.impl("short_conv", laplace::ops::plain);
}

TORCH_LIBRARY_IMPL(laplace, Autograd, library) {
  library.impl("short_conv", laplace::ops::differentiable);
}
