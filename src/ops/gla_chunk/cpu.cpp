// gla_chunk on the CPU: the fused kernel, parallel over sequences and heads.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include "ops/cpu.h"
#include "ops/gla_chunk/gla_chunk.h"
#include "ops/gla_chunk/kernel.h"
#include "ops/gla_chunk/pair_gemm.h"

namespace laplace::ops {

namespace {

int64_t kernel_chunk(int64_t chunk_size, int64_t T) {
  return std::min({chunk_size, T, kGlaMaxChunk});
}

// What both directions read, kept alive while the kernel runs.
struct Inputs {
  Inputs(const at::Tensor& q_in, const at::Tensor& k_in, const at::Tensor& v_in,
         const at::Tensor& log_decay, const OptionalTensor& doc_start, int64_t chunk_size)
      : q(with_head_rows(q_in)),
        k(with_head_rows(k_in)),
        v(with_head_rows(v_in)),
        starts(doc_start_bytes(doc_start)),
        C(kernel_chunk(chunk_size, q.size(1))) {
    const at::Tensor rates = log_decay.contiguous();
    for (int64_t h = 0; h < q.size(2); ++h) {
      decay.emplace_back(read<float>(rates)[h], q.size(3), C);
    }
  }
  template <class X>
  GlaChunkHeads<X> heads() const {
    GlaChunkHeads<X> a{};
    a.T = q.size(1);
    a.H = q.size(2);
    a.dk = q.size(3);
    a.dv = v.size(3);
    a.C = C;
    a.N = blocks_of(a.T, C);
    a.decay = decay.data();
    a.q = read_rows<X>(q);
    a.k = read_rows<X>(k);
    a.v = read_rows<X>(v);
    if (starts.defined()) a.doc_start = read<uint8_t>(starts);
    return a;
  }

  at::Tensor q, k, v, starts;
  int64_t C;
  std::vector<GlaDecay> decay;
};

template <class X>
GlaChunkKernels<X> kernels_for(const GlaChunkHeads<X>& a) {
  if constexpr (std::is_same_v<X, BFloat16>) {
    if (pair_gemm() != nullptr && rows_are_words(a)) return gla_chunk_pair_kernels();
  }
  return gla_chunk_kernels<X>();
}

template <class Body>
void for_heads(const at::Tensor& q, int64_t dv, const Body& body) {
  const int64_t H = q.size(2);
  at::parallel_for(0, q.size(0) * H, grain_of(q.size(1) * (q.size(3) * dv)),
                   [&](int64_t first, int64_t last) {
                     for (int64_t i = first; i < last; ++i) body(i / H, i % H);
                   });
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> forward(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& log_decay,
    const OptionalTensor& state, const OptionalTensor& doc_start, int64_t chunk_size) {
  if (!takes_fused(q)) {
    return gla_chunk_forward_portable(q, k, v, log_decay, state, doc_start, chunk_size);
  }
  const Inputs in(q, k, v, log_decay, doc_start, chunk_size);
  const int64_t B = q.size(0), H = q.size(2), dk = q.size(3), dv = v.size(3);
  const auto floats = q.options().dtype(at::kFloat);
  const at::Tensor o = at::empty({B, q.size(1), H, dv}, q.options()),
                   state_out = at::empty({B, H, dk, dv}, floats),
                   chunk_states = at::empty({B, H, blocks_of(q.size(1), in.C), dk, dv}, floats),
                   state_in = state ? state->contiguous() : at::Tensor();
  with_element(q.scalar_type(), [&]<class X>(X*) {
    GlaChunkHeads<X> a = in.heads<X>();
    if (state_in.defined()) a.state = read<float>(state_in);
    a.o = written_rows<X>(o);
    a.chunk_states = written<float>(chunk_states);
    a.state_out = written<float>(state_out);
    const auto kernel = kernels_for(a).forward;
    for_heads(q, v.size(3), [&](int64_t b, int64_t h) { kernel(a, b, h); });
  });
  return {o, state_out, chunk_states};
}

at::Tensor backward(const at::Tensor& grad_o, const OptionalTensor& grad_state_out,
                    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    const at::Tensor& log_decay, const at::Tensor& chunk_states,
                    const OptionalTensor& doc_start, int64_t chunk_size, bool accumulate,
                    at::Tensor& d_q, at::Tensor& d_k, at::Tensor& d_v) {
  const bool rows_fit = has_head_rows(d_q) && has_head_rows(d_k) && has_head_rows(d_v);
  const int64_t C = kernel_chunk(chunk_size, q.size(1));
  const bool own_states = chunk_states.size(2) == blocks_of(q.size(1), C);
  if (!takes_fused(q) || !rows_fit || !own_states) {
    return gla_chunk_backward_portable(grad_o, grad_state_out, q, k, v, log_decay, chunk_states,
                                       doc_start, chunk_size, accumulate, d_q, d_k, d_v);
  }
  const Inputs in(q, k, v, log_decay, doc_start, chunk_size);
  const at::Tensor d_o = with_head_rows(grad_o.to(q.scalar_type())),
                   states = chunk_states.contiguous(),
                   d_state_out = grad_state_out ? grad_state_out->contiguous() : at::Tensor();
  at::Tensor d_state = at::empty({q.size(0), q.size(2), q.size(3), v.size(3)}, states.options());
  with_element(q.scalar_type(), [&]<class X>(X*) {
    GlaChunkHeads<X> a = in.heads<X>();
    a.chunk_states = static_cast<float*>(states.data_ptr());
    a.d_o = read_rows<X>(d_o);
    if (d_state_out.defined()) a.d_state_out = read<float>(d_state_out);
    a.d_q = written_rows<X>(d_q);
    a.d_k = written_rows<X>(d_k);
    a.d_v = written_rows<X>(d_v);
    a.accumulate = accumulate;
    a.d_state = written<float>(d_state);
    const auto kernel = kernels_for(a).backward;
    for_heads(q, v.size(3), [&](int64_t b, int64_t h) { kernel(a, b, h); });
  });
  return d_state;
}

}  // namespace

}  // namespace laplace::ops

TORCH_LIBRARY_IMPL(laplace, CPU, library) {
  library.impl("gla_chunk_forward", laplace::ops::forward);
  library.impl("gla_chunk_backward", laplace::ops::backward);
}
