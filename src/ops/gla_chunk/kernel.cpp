// See kernel.h. Names as in gla_chunk.h: P the masked scores of a chunk, S the state entering it.
#include "ops/gla_chunk/kernel.h"

#include <algorithm>
#include <cmath>

#include "ops/simd/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/gla_chunk/kernel.cpp"
#include <hwy/foreach_target.h>

#include "ops/gla_chunk/chunk-inl.h"
#include "ops/gla_chunk/small_gemm-inl.h"
#include "ops/simd/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace laplace::ops::HWY_NAMESPACE {

template <class X>
void forward(const GlaChunkHeads<X>& a, int64_t b, int64_t h) {
  const size_t dk = size_t(a.dk), dv = size_t(a.dv), C = size_t(a.C);
  const GlaDecay& decay = a.decay[h];
  Workspace workspace(2 * C * whole_vectors(dk) + 2 * C * whole_vectors(dv) +
                      (dk + C) * whole_vectors(C) + dk * whole_vectors(dv));
  const Matrix Q = workspace.matrix(C, dk), K = workspace.matrix(C, dk),
               V = workspace.matrix(C, dv), O = workspace.matrix(C, dv),
               Kt = workspace.matrix(dk, C), P = workspace.matrix(C, C),
               S = workspace.matrix(dk, dv);
  const int64_t state_size = a.dk * a.dv;
  if (a.state != nullptr) load_state(a.state + (b * a.H + h) * state_size, dk, S);
  for (int64_t n = 0; n < a.N; ++n) {
    const Chunk chunk = chunk_at(a, b, n);
    const size_t L = size_t(chunk.length);
    store_state(S, dk, a.chunk_states + ((b * a.H + h) * a.N + n) * state_size);
    for (size_t i = 0; i < L; ++i) {
      const int64_t token = b * a.T + chunk.first + int64_t(i);
      copy_row(a.q.at(token, h), dk, 1.0f, Q.row(i));
      copy_row(a.k.at(token, h), dk, 1.0f, K.row(i));
      copy_row(a.v.at(token, h), dv, 1.0f, V.row(i));
    }
    transpose(K, L, Kt);
    small_gemm<Part::kLowerResult>(L, L, dk, plain(Q), Kt.data, Kt.stride, P.data, P.stride, false);
    mask_scores(decay, a.C, chunk, kBlockRows, P);
    small_gemm<Part::kLowerA>(L, dv, L, plain(P), V.data, V.stride, O.data, O.stride, false);
    for (size_t i = 0; i < L; ++i) {
      copy_row(Q.row(i), dk, read_scale(decay, chunk, int64_t(i)), Q.row(i));
      copy_row(K.row(i), dk, write_scale(decay, chunk, int64_t(i)), K.row(i));
    }
    small_gemm<Part::kAll>(L, dv, dk, plain(Q), S.data, S.stride, O.data, O.stride, true);
    for (size_t i = 0; i < L; ++i) {
      put_row(O.row(i), dv, false, a.o.at(b * a.T + chunk.first + int64_t(i), h));
    }
    fade_state(decay, chunk, dk, S);
    small_gemm<Part::kAll>(dk, dv, L, transposed(K), V.data, V.stride, S.data, S.stride, true);
  }
  store_state(S, dk, a.state_out + (b * a.H + h) * state_size);
}

// Everything backward keeps of one head.
struct Gradients {
  Gradients(size_t C, size_t dk, size_t dv)
      : workspace(4 * C * whole_vectors(dk) + 5 * C * whole_vectors(dv) +
                  (2 * C + dk + dv) * whole_vectors(C) + 2 * dv * whole_vectors(dk) +
                  2 * dk * whole_vectors(dv)),
        Q(workspace.matrix(C, dk)),
        K(workspace.matrix(C, dk)),
        dQ(workspace.matrix(C, dk)),
        dK(workspace.matrix(C, dk)),
        V(workspace.matrix(C, dv)),
        dO(workspace.matrix(C, dv)),
        dO_read(workspace.matrix(C, dv)),
        dV(workspace.matrix(C, dv)),
        P(workspace.matrix(C, C)),
        dP(workspace.matrix(C, C)),
        Kt(workspace.matrix(dk, C)),
        Vt(workspace.matrix(dv, C)),
        St(workspace.matrix(dv, dk)),
        dSt(workspace.matrix(dv, dk)),
        S(workspace.matrix(dk, dv)),
        dS(workspace.matrix(dk, dv)) {}

  Workspace workspace;
  Matrix Q, K, dQ, dK, V, dO, dO_read, dV, P, dP, Kt, Vt, St, dSt, S, dS;
};

// The gradients of one chunk's q, k, v from dO and the dS that leaves it, then the dS that enters.
//   dP = mask * (dO V^T)      dQ = dP K + read * (dO S^T)      dK = dP^T Q + write * (V dS^T)
//   dV = P^T dO + write * (K dS)      dS <- lambda^L dS + Q^T (read * dO)
HWY_INLINE void chunk_gradients(const GlaDecay& decay, int64_t C, const Chunk& chunk,
                                const Gradients& w) {
  const size_t L = size_t(chunk.length), dk = w.Q.columns, dv = w.V.columns;
  transpose(w.K, L, w.Kt);
  transpose(w.V, L, w.Vt);
  transpose(w.S, dk, w.St);
  transpose(w.dS, dk, w.dSt);
  const auto product = [&]<Part kPart>(std::integral_constant<Part, kPart>, size_t m, size_t k,
                                       Broadcast x, const Matrix& y, const Matrix& out, bool add)
                           HWY_ATTR {
                             small_gemm<kPart>(m, kPart == Part::kLowerResult ? L : y.columns, k, x,
                                               y.data, y.stride, out.data, out.stride, add);
                           };
  constexpr std::integral_constant<Part, Part::kAll> kAll;
  constexpr std::integral_constant<Part, Part::kLowerResult> kLowerResult;
  constexpr std::integral_constant<Part, Part::kLowerA> kLowerA;
  constexpr std::integral_constant<Part, Part::kUpperA> kUpperA;

  product(kLowerResult, L, dk, plain(w.Q), w.Kt, w.P, false);
  product(kLowerResult, L, dv, plain(w.dO), w.Vt, w.dP, false);
  mask_scores(decay, C, chunk, kBlockRows, w.P);
  mask_scores(decay, C, chunk, kBlockRows, w.dP);
  for (size_t i = 0; i < L; ++i) {
    copy_row(w.dO.row(i), dv, read_scale(decay, chunk, int64_t(i)), w.dO_read.row(i));
  }
  product(kLowerA, L, L, plain(w.dP), w.K, w.dQ, false);
  product(kAll, L, dv, plain(w.dO_read), w.St, w.dQ, true);
  product(kUpperA, L, L, transposed(w.dP), w.Q, w.dK, false);
  product(kUpperA, L, L, transposed(w.P), w.dO, w.dV, false);
  for (size_t i = 0; i < L; ++i) {
    const float write = write_scale(decay, chunk, int64_t(i));
    copy_row(w.V.row(i), dv, write, w.V.row(i));
    copy_row(w.K.row(i), dk, write, w.K.row(i));
  }
  product(kAll, L, dv, plain(w.V), w.dSt, w.dK, true);
  product(kAll, L, dk, plain(w.K), w.dS, w.dV, true);
  fade_state(decay, chunk, dk, w.dS);
  product(kAll, dk, L, transposed(w.Q), w.dO_read, w.dS, true);
}

template <class X>
void backward(const GlaChunkHeads<X>& a, int64_t b, int64_t h) {
  const size_t dk = size_t(a.dk), dv = size_t(a.dv);
  const Gradients w(size_t(a.C), dk, dv);
  const int64_t head = b * a.H + h, state_size = a.dk * a.dv;
  if (a.d_state_out != nullptr) load_state(a.d_state_out + head * state_size, dk, w.dS);
  for (int64_t n = a.N - 1; n >= 0; --n) {
    const Chunk chunk = chunk_at(a, b, n);
    load_state(a.chunk_states + (head * a.N + n) * state_size, dk, w.S);
    for (int64_t i = 0; i < chunk.length; ++i) {
      const int64_t token = b * a.T + chunk.first + i;
      copy_row(a.q.at(token, h), dk, 1.0f, w.Q.row(size_t(i)));
      copy_row(a.k.at(token, h), dk, 1.0f, w.K.row(size_t(i)));
      copy_row(a.v.at(token, h), dv, 1.0f, w.V.row(size_t(i)));
      copy_row(a.d_o.at(token, h), dv, 1.0f, w.dO.row(size_t(i)));
    }
    chunk_gradients(a.decay[h], a.C, chunk, w);
    for (int64_t i = 0; i < chunk.length; ++i) {
      const int64_t token = b * a.T + chunk.first + i;
      put_row(w.dQ.row(size_t(i)), dk, a.accumulate, a.d_q.at(token, h));
      put_row(w.dK.row(size_t(i)), dk, a.accumulate, a.d_k.at(token, h));
      put_row(w.dV.row(size_t(i)), dv, a.accumulate, a.d_v.at(token, h));
    }
  }
  store_state(w.dS, dk, a.d_state + head * state_size);
}

static GlaChunkKernels<float> Floats() { return {forward<float>, backward<float>}; }
static GlaChunkKernels<BFloat16> Halves() { return {forward<BFloat16>, backward<BFloat16>}; }

}  // namespace laplace::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace laplace::ops {

GlaDecay::GlaDecay(float log_decay, int64_t dk, int64_t C)
    : within(size_t(3 * C) + 32),
      read(static_cast<size_t>(C)),
      powers(static_cast<size_t>(C)),
      fades(size_t(C) + 1) {
  const double scale = 1.0 / std::sqrt(double(dk));
  const auto power = [&](int64_t n) { return std::exp(double(log_decay) * double(n)); };
  for (int64_t n = 0; n < C; ++n) {
    within[size_t(C - 1 - n)] = float(scale * power(n));
    read[size_t(n)] = float(scale * power(n + 1));
    powers[size_t(n)] = float(power(n));
  }
  for (int64_t n = 0; n <= C; ++n) {
    fades[size_t(n)] = float(std::expm1(double(log_decay) * double(n)));
  }
}

LAPLACE_DISPATCH(GlaChunkKernels, gla_chunk_kernels)

}  // namespace laplace::ops
#endif  // HWY_ONCE
