// gla_chunk's schema, checks and autograd node; see gla_chunk.h.
#include "ops/gla_chunk/gla_chunk.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/common.h"

namespace laplace::ops {

std::tuple<at::Tensor, at::Tensor, at::Tensor> gla_chunk_forward(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& log_decay,
    const OptionalTensor& state, const OptionalTensor& doc_start, int64_t chunk_size) {
  static const auto entry = dispatcher_entry<GlaChunkForward>("laplace::gla_chunk_forward");
  return entry.call(q, k, v, log_decay, state, doc_start, chunk_size);
}

at::Tensor gla_chunk_backward(const at::Tensor& grad_o,
                              const std::optional<at::Tensor>& grad_state_out, const at::Tensor& q,
                              const at::Tensor& k, const at::Tensor& v, const at::Tensor& log_decay,
                              const at::Tensor& chunk_states,
                              const std::optional<at::Tensor>& doc_start, int64_t chunk_size,
                              bool accumulate, at::Tensor& d_q, at::Tensor& d_k, at::Tensor& d_v) {
  static const auto entry = dispatcher_entry<GlaChunkBackward>("laplace::gla_chunk_backward");
  return entry.call(grad_o, grad_state_out, q, k, v, log_decay, chunk_states, doc_start, chunk_size,
                    accumulate, d_q, d_k, d_v);
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void check(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
           const at::Tensor& log_decay, const OptionalTensor& state,
           const OptionalTensor& doc_start, int64_t chunk_size) {
  constexpr auto kOp = "gla_chunk";
  check_floating(kOp, "q", q);
  check_shape(kOp, "q", q, {-1, -1, -1, -1});
  const int64_t B = q.size(0), T = q.size(1), H = q.size(2), dk = q.size(3);
  TORCH_CHECK(B > 0 && T > 0 && H > 0 && dk > 0, "laplace::gla_chunk: q has shape ", q.sizes(),
              ", but no size may be 0");
  check_shape(kOp, "k", k, {B, T, H, dk});
  check_dtype(kOp, "k", k, q.scalar_type());
  check_shape(kOp, "v", v, {B, T, H, -1});
  check_dtype(kOp, "v", v, q.scalar_type());
  check_shape(kOp, "log_decay", log_decay, {H});
  check_dtype(kOp, "log_decay", log_decay, at::kFloat);
  TORCH_CHECK(log_decay.device().is_cpu(), "laplace::gla_chunk: log_decay is on ",
              log_decay.device(), ", but must be on the host (cpu)");
  if (state) {
    check_shape(kOp, "state", *state, {B, H, dk, v.size(3)});
    check_dtype(kOp, "state", *state, sum_dtype(q.scalar_type()));
  }
  check_doc_start(kOp, doc_start, B, T);
  TORCH_CHECK(chunk_size > 0, "laplace::gla_chunk: chunk_size is ", chunk_size,
              ", but must be at least 1");
}

class GlaChunkNode : public torch::autograd::Function<GlaChunkNode> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const at::Tensor& log_decay,
                               const OptionalTensor& state, const OptionalTensor& doc_start,
                               int64_t chunk_size) {
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [o, state_out, chunk_states] =
        gla_chunk_forward(q, k, v, log_decay, state, doc_start, chunk_size);
    context->save_for_backward(
        {q, k, v, log_decay, chunk_states, doc_start.value_or(at::Tensor())});
    context->saved_data["chunk_size"] = chunk_size;
    context->saved_data["has_state"] = state.has_value();
    context->set_materialize_grads(false);
    return {o, state_out};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& v = saved[2];
    const auto optional = [](const at::Tensor& t) {
      return t.defined() ? OptionalTensor(t) : std::nullopt;
    };
    const at::Tensor grad_o = grads[0].defined() ? grads[0] : at::zeros_like(v);
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto like = [](const at::Tensor& x) {
      return at::empty_like(x, {}, at::MemoryFormat::Contiguous);
    };
    at::Tensor d_q = like(saved[0]), d_k = like(saved[1]), d_v = like(v);
    at::Tensor d_state =
        gla_chunk_backward(grad_o, optional(grads[1]), saved[0], saved[1], v, saved[3], saved[4],
                           optional(saved[5]), context->saved_data["chunk_size"].toInt(),
                           /*accumulate=*/false, d_q, d_k, d_v);
    if (!context->saved_data["has_state"].toBool()) d_state = at::Tensor();
    return {d_q, d_k, d_v, at::Tensor(), d_state, at::Tensor(), at::Tensor()};
  }
};

std::tuple<at::Tensor, at::Tensor> plain(const at::Tensor& q, const at::Tensor& k,
                                         const at::Tensor& v, const at::Tensor& log_decay,
                                         const OptionalTensor& state,
                                         const OptionalTensor& doc_start, int64_t chunk_size) {
  check(q, k, v, log_decay, state, doc_start, chunk_size);
  auto [o, state_out, unused] = gla_chunk_forward(q, k, v, log_decay, state, doc_start, chunk_size);
  return {o, state_out};
}

std::tuple<at::Tensor, at::Tensor> differentiable(const at::Tensor& q, const at::Tensor& k,
                                                  const at::Tensor& v, const at::Tensor& log_decay,
                                                  const OptionalTensor& state,
                                                  const OptionalTensor& doc_start,
                                                  int64_t chunk_size) {
  check(q, k, v, log_decay, state, doc_start, chunk_size);
  const auto out = GlaChunkNode::apply(q, k, v, log_decay, state, doc_start, chunk_size);
  return {out[0], out[1]};
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> gla_chunk(const at::Tensor& q, const at::Tensor& k,
                                             const at::Tensor& v, const at::Tensor& log_decay,
                                             const OptionalTensor& state,
                                             const OptionalTensor& doc_start, int64_t chunk_size) {
  static const auto entry = dispatcher_entry<decltype(plain)>("laplace::gla_chunk");
  return entry.call(q, k, v, log_decay, state, doc_start, chunk_size);
}

}  // namespace laplace::ops

TORCH_LIBRARY_FRAGMENT(laplace, library) {
  library.def(
      "gla_chunk(Tensor q, Tensor k, Tensor v, Tensor log_decay, Tensor? state, Tensor? doc_start, "
      "int chunk_size) -> (Tensor, Tensor)");
  library.def(
      "gla_chunk_forward(Tensor q, Tensor k, Tensor v, Tensor log_decay, Tensor? state, Tensor? "
      "doc_start, int chunk_size) -> (Tensor, Tensor, Tensor)");
  library.def(
      "gla_chunk_backward(Tensor grad_o, Tensor? grad_state_out, Tensor q, Tensor k, Tensor v, "
      "Tensor log_decay, Tensor chunk_states, Tensor? doc_start, int chunk_size, bool accumulate, "
      "Tensor(a!) d_q, Tensor(b!) d_k, Tensor(c!) d_v) -> Tensor");
}

TORCH_LIBRARY_IMPL(laplace, CompositeExplicitAutograd, library) {
  library.impl("gla_chunk", laplace::ops::plain);
}

TORCH_LIBRARY_IMPL(laplace, Autograd, library) {
  library.impl("gla_chunk", laplace::ops::differentiable);
}
