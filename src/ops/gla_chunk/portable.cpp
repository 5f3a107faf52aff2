// gla_chunk in ATen operators only: the reference, and the path of every device without a kernel.
//
// All chunks' inner products are independent and run as batched matrix products over B*H*N chunks;
// only the states at the chunk borders are sequential, N unrolled steps. Layout inside:
// [B,H,N,C,d], float32 (float64). The last chunk is padded with zeros; its true length enters the
// powers.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <cmath>
#include <vector>

#include "ops/common.h"
#include "ops/gla_chunk/gla_chunk.h"

namespace laplace::ops {

namespace {

struct Shape {
  int64_t B, T, H, dk, dv, C, N;
  at::ScalarType dtype;  // of the sums
};

Shape shape_of(const at::Tensor& q, const at::Tensor& v, int64_t chunk_size) {
  const int64_t T = q.size(1);
  const int64_t C = std::min(chunk_size, T);
  return {q.size(0), T, q.size(2),       q.size(3),
          v.size(3), C, (T + C - 1) / C, sum_dtype(q.scalar_type())};
}

// Powers of the decay, with 0/1 masks of the document boundaries folded in where there are any.
struct Tables {
  at::Tensor within;  // [1,H,1,C,C] or [B,H,N,C,C]  dk^-1/2 lambda^{i-j}, zero above the diagonal
  at::Tensor read;    // [1,H,1,C,1] or [B,H,N,C,1]  dk^-1/2 lambda^{i+1}, i from 0
  at::Tensor write;   // [1,H,N,C,1] or [B,H,N,C,1]  lambda^{L-1-j}, L the chunk's true length
  at::Tensor fade;    // [1,H,N,1,1] or [B,H,N,1,1]  lambda^L - 1: S lambda^L is S + S fade, because
                      // a rounded power near 1 would drift when it is applied many times over
};

// Host arithmetic in float64, rounded once.
Tables decay_tables(const Shape& s, const at::Tensor& log_decay) {
  const auto options = at::TensorOptions(at::kDouble);
  at::Tensor within = at::zeros({s.H, s.C, s.C}, options), read = at::empty({s.H, s.C}, options),
             write = at::empty({s.H, s.N, s.C}, options), fade = at::empty({s.H, s.N}, options);
  const at::Tensor gamma = log_decay.to(at::kDouble).contiguous();
  const double scale = 1.0 / std::sqrt(double(s.dk));
  const int64_t last_length = s.T - s.C * (s.N - 1);
  std::vector<double> power(size_t(s.C) + 1);
  for (int64_t h = 0; h < s.H; ++h) {
    for (int64_t n = 0; n <= s.C; ++n) {
      power[size_t(n)] = std::exp(gamma.const_data_ptr<double>()[h] * double(n));
    }
    double* const w = within.mutable_data_ptr<double>() + h * s.C * s.C;
    for (int64_t i = 0; i < s.C; ++i) {
      for (int64_t j = 0; j <= i; ++j) w[i * s.C + j] = scale * power[size_t(i - j)];
      read.mutable_data_ptr<double>()[h * s.C + i] = scale * power[size_t(i + 1)];
    }
    for (int64_t n = 0; n < s.N; ++n) {
      const int64_t length = n + 1 < s.N ? s.C : last_length;
      fade.mutable_data_ptr<double>()[h * s.N + n] =
          std::expm1(gamma.const_data_ptr<double>()[h] * double(length));
      double* const row = write.mutable_data_ptr<double>() + (h * s.N + n) * s.C;
      for (int64_t j = 0; j < s.C; ++j)
        row[j] = power[size_t(std::max<int64_t>(length - 1 - j, 0))];
    }
  }
  return {within.view({1, s.H, 1, s.C, s.C}), read.view({1, s.H, 1, s.C, 1}),
          write.view({1, s.H, s.N, s.C, 1}), fade.view({1, s.H, s.N, 1, 1})};
}

Tables make_tables(const Shape& s, const at::Tensor& like, const at::Tensor& log_decay,
                   const OptionalTensor& doc_start) {
  Tables tables = decay_tables(s, log_decay);
  for (at::Tensor* t : {&tables.within, &tables.read, &tables.write, &tables.fade}) {
    *t = t->to(like.device(), s.dtype);
  }
  const OptionalTensor starts = doc_start_mask(doc_start, like, s.dtype);
  if (!starts) return tables;
  // The index of a token's document within its chunk, 0 for the one that entered: a running sum of
  // the starts, as a product with a triangle of ones (exact: small whole numbers).
  const at::Tensor triangle = at::ones({s.C, s.C}, starts->options()).triu();
  const at::Tensor doc = at::constant_pad_nd(*starts, {0, s.N * s.C - s.T})
                             .view({s.B * s.N, s.C})
                             .matmul(triangle)
                             .view({s.B, 1, s.N, s.C, 1});
  const at::Tensor last = doc.slice(3, s.C - 1);  // [B,1,N,1,1]
  tables.within = tables.within * doc.eq(doc.transpose(3, 4)).to(s.dtype);
  tables.read = tables.read * doc.eq(0).to(s.dtype);
  tables.write = tables.write * doc.eq(last).to(s.dtype);
  const at::Tensor same = last.eq(0).to(s.dtype);
  tables.fade = tables.fade * same + (same - 1);
  return tables;
}

// [B,T,H,d] -> [B,H,N,C,d] in the sums' dtype, zeros behind the last token.
at::Tensor split(const at::Tensor& x, const Shape& s) {
  const int64_t padding = s.N * s.C - s.T;
  const at::Tensor padded = padding == 0 ? x : at::constant_pad_nd(x, {0, 0, 0, 0, 0, padding});
  const at::Tensor chunks = padded.unflatten(1, {s.N, s.C}).permute({0, 3, 1, 2, 4});
  return at::empty(chunks.sizes(), x.options().dtype(s.dtype)).copy_(chunks);
}

// [B,H,N,C,d] -> [B,T,H,d] in `dtype`.
at::Tensor join(const at::Tensor& x, const Shape& s, at::ScalarType dtype) {
  const at::Tensor rows = x.permute({0, 2, 3, 1, 4});  // [B,N,C,H,d]
  const at::Tensor out = at::empty(rows.sizes(), x.options().dtype(dtype)).copy_(rows);
  return out.view({s.B, s.N * s.C, s.H, -1}).slice(1, 0, s.T);
}

// Batched product of the last two axes; the leading three are equal.
at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  return at::bmm(a.flatten(0, 2), b.flatten(0, 2)).unflatten(0, a.sizes().slice(0, 3));
}

at::Tensor transposed(const at::Tensor& x) { return x.transpose(3, 4); }

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> gla_chunk_forward_portable(
    const at::Tensor& q_in, const at::Tensor& k_in, const at::Tensor& v_in,
    const at::Tensor& log_decay, const OptionalTensor& state, const OptionalTensor& doc_start,
    int64_t chunk_size) {
  const Shape s = shape_of(q_in, v_in, chunk_size);
  const Tables tables = make_tables(s, q_in, log_decay, doc_start);
  const at::Tensor q = split(q_in, s), k = split(k_in, s), v = split(v_in, s);

  at::Tensor o = product(product(q, transposed(k)).mul_(tables.within), v);
  const at::Tensor update = product(transposed(k * tables.write), v);  // [B,H,N,dk,dv]
  at::Tensor S = state ? state->clone() : at::zeros({s.B, s.H, s.dk, s.dv}, q.options());
  std::vector<at::Tensor> entering;
  for (int64_t n = 0; n < s.N; ++n) {
    entering.push_back(S);
    S = S + S * tables.fade.select(2, n) + update.select(2, n);
  }
  const at::Tensor chunk_states = at::stack(entering, 2);  // [B,H,N,dk,dv]
  o.add_(product(q * tables.read, chunk_states));
  return {join(o, s, q_in.scalar_type()), S, chunk_states};
}

// With A = within, r = read, w = write and dS' the gradient of the state that leaves a chunk:
//   dP = (dO V^T) * A      dQ = dP K + r * (dO S^T)       dK = dP^T Q + w * (V dS'^T)
//   dV = (Q K^T * A)^T dO + (w * K) dS'                   dS = lambda^L dS' + (r * Q)^T dO
at::Tensor gla_chunk_backward_portable(const at::Tensor& grad_o,
                                       const OptionalTensor& grad_state_out, const at::Tensor& q_in,
                                       const at::Tensor& k_in, const at::Tensor& v_in,
                                       const at::Tensor& log_decay, const at::Tensor& chunk_states,
                                       const OptionalTensor& doc_start, int64_t chunk_size,
                                       bool accumulate, at::Tensor& d_q, at::Tensor& d_k,
                                       at::Tensor& d_v) {
  const Shape s = shape_of(q_in, v_in, chunk_size);
  const Tables tables = make_tables(s, q_in, log_decay, doc_start);
  const at::Tensor q = split(q_in, s), k = split(k_in, s), v = split(v_in, s);
  const at::Tensor dO = split(grad_o, s);

  const at::Tensor reads = product(transposed(q * tables.read), dO);  // [B,H,N,dk,dv]
  at::Tensor dS = grad_state_out ? *grad_state_out : at::zeros_like(chunk_states.select(2, 0));
  std::vector<at::Tensor> leaving(static_cast<size_t>(s.N));
  for (int64_t n = s.N - 1; n >= 0; --n) {
    leaving[size_t(n)] = dS;
    dS = dS + dS * tables.fade.select(2, n) + reads.select(2, n);
  }
  const at::Tensor dS_out = at::stack(leaving, 2);

  const at::Tensor scores = product(q, transposed(k)).mul_(tables.within);
  const at::Tensor dP = product(dO, transposed(v)).mul_(tables.within);
  const at::Tensor dq =
      product(dP, k).add_(product(dO, transposed(chunk_states)).mul_(tables.read));
  const at::Tensor dk =
      product(transposed(dP), q).add_(product(v, transposed(dS_out)).mul_(tables.write));
  const at::Tensor dv = product(transposed(scores), dO).add_(product(k * tables.write, dS_out));
  const auto put = [&](const at::Tensor& gradient, at::Tensor& out) {
    const at::Tensor joined = join(gradient, s, out.scalar_type());
    accumulate ? out.add_(joined) : out.copy_(joined);
  };
  put(dq, d_q);
  put(dk, d_k);
  put(dv, d_v);
  return dS;
}

}  // namespace laplace::ops

TORCH_LIBRARY_IMPL(laplace, CompositeExplicitAutograd, library) {
  library.impl("gla_chunk_forward", laplace::ops::gla_chunk_forward_portable);
  library.impl("gla_chunk_backward", laplace::ops::gla_chunk_backward_portable);
}
