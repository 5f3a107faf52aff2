// gla_step's schema and checks; see gla_step.h.
#include "ops/gla_step/gla_step.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/library.h>

#include "ops/common.h"

namespace laplace::ops {

namespace {

at::Tensor plain(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                 const at::Tensor& log_decay, at::Tensor& state) {
  constexpr auto kOp = "gla_step";
  check_floating(kOp, "q", q);
  check_shape(kOp, "q", q, {-1, -1, -1});
  const int64_t B = q.size(0), H = q.size(1), dk = q.size(2);
  check_shape(kOp, "k", k, {B, H, dk});
  check_dtype(kOp, "k", k, q.scalar_type());
  check_shape(kOp, "v", v, {B, H, -1});
  check_dtype(kOp, "v", v, q.scalar_type());
  check_shape(kOp, "log_decay", log_decay, {H});
  check_dtype(kOp, "log_decay", log_decay, at::kFloat);
  check_shape(kOp, "state", state, {B, H, dk, v.size(2)});
  check_dtype(kOp, "state", state, sum_dtype(q.scalar_type()));
  static const auto entry = dispatcher_entry<GlaStep>("laplace::gla_step_forward");
  return entry.call(q, k, v, log_decay, state);
}

at::Tensor without_gradients(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const at::Tensor& log_decay, at::Tensor& state) {
  const OptionalTensor q_in = q, k_in = k, v_in = v, state_in = state;
  check_no_gradients("gla_step", {&q_in, &k_in, &v_in, &state_in});
  const at::AutoDispatchBelowADInplaceOrView below;
  return plain(q, k, v, log_decay, state);
}

}  // namespace

at::Tensor gla_step(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    const at::Tensor& log_decay, at::Tensor& state) {
  static const auto entry = dispatcher_entry<GlaStep>("laplace::gla_step");
  return entry.call(q, k, v, log_decay, state);
}

}  // namespace laplace::ops

TORCH_LIBRARY_FRAGMENT(laplace, library) {
  library.def(
      "gla_step(Tensor q, Tensor k, Tensor v, Tensor log_decay, Tensor(a!) state) -> Tensor");
  library.def(
      "gla_step_forward(Tensor q, Tensor k, Tensor v, Tensor log_decay, Tensor(a!) state) -> "
      "Tensor");
}

TORCH_LIBRARY_IMPL(laplace, CompositeExplicitAutograd, library) {
  library.impl("gla_step", laplace::ops::plain);
}

TORCH_LIBRARY_IMPL(laplace, Autograd, library) {
  library.impl("gla_step", laplace::ops::without_gradients);
}
