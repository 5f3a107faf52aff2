// swiglu's schema, checks and autograd node; see swiglu.h.
#include "ops/swiglu/swiglu.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/common.h"

namespace laplace::ops {

at::Tensor swiglu_forward(const at::Tensor& gate_up) {
  static const auto entry = dispatcher_entry<SwigluForward>("laplace::swiglu_forward");
  return entry.call(gate_up);
}

at::Tensor swiglu_backward(const at::Tensor& grad_y, const at::Tensor& gate_up) {
  static const auto entry = dispatcher_entry<SwigluBackward>("laplace::swiglu_backward");
  return entry.call(grad_y, gate_up);
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void check(const at::Tensor& gate_up) {
  check_floating("swiglu", "gate_up", gate_up);
  TORCH_CHECK(gate_up.dim() >= 1 && gate_up.size(-1) > 0 && gate_up.size(-1) % 2 == 0,
              "laplace::swiglu: gate_up has shape ", gate_up.sizes(),
              ", but its last axis must be even (gate, then up)");
}

class SwigluNode : public torch::autograd::Function<SwigluNode> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& gate_up) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({gate_up});
    return {swiglu_forward(gate_up)};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return {swiglu_backward(grads[0], context->get_saved_variables()[0])};
  }
};

at::Tensor plain(const at::Tensor& gate_up) {
  check(gate_up);
  return swiglu_forward(gate_up);
}

at::Tensor differentiable(const at::Tensor& gate_up) {
  check(gate_up);
  return SwigluNode::apply(gate_up)[0];
}

}  // namespace

at::Tensor swiglu(const at::Tensor& gate_up) {
  static const auto entry = dispatcher_entry<decltype(plain)>("laplace::swiglu");
  return entry.call(gate_up);
}

}  // namespace laplace::ops

TORCH_LIBRARY_FRAGMENT(laplace, library) {
  library.def("swiglu(Tensor gate_up) -> Tensor");
  library.def("swiglu_forward(Tensor gate_up) -> Tensor");
  library.def("swiglu_backward(Tensor grad_y, Tensor gate_up) -> Tensor");
}

TORCH_LIBRARY_IMPL(laplace, CompositeExplicitAutograd, library) {
  library.impl("swiglu", laplace::ops::plain);
}

TORCH_LIBRARY_IMPL(laplace, Autograd, library) {
  library.impl("swiglu", laplace::ops::differentiable);
}
