// gla_chunk's fused kernel of bfloat16 for machines that multiply pairs of it: as kernel.cpp, but
// the inputs are multiplied as they lie, and what is worked out on the way (scores, decayed rows,
// the state as an operand) is rounded to bfloat16. Sums and states are float32.
#include <algorithm>
#include <vector>

#include "ops/gla_chunk/kernel.h"
#include "ops/gla_chunk/pair_gemm.h"
#include "ops/simd/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/gla_chunk/pair_kernel.cpp"
#include <hwy/foreach_target.h>

#include "ops/gla_chunk/chunk-inl.h"
#include "ops/simd/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace laplace::ops::HWY_NAMESPACE {

using Bits = hn::Vec<U32>;

HWY_INLINE size_t padded(size_t n) { return (n + kPairColumns - 1) / kPairColumns * kPairColumns; }

// Rows of bfloat16: an input, or a matrix in the workspace.
template <class X>
struct HalfRows {
  X* data;
  size_t stride;

  X* row(size_t i) const { return data + i * stride; }
};
using Halves16 = HalfRows<BFloat16>;
using InputRows = HalfRows<const BFloat16>;

// A product's right-hand side: words of two bfloat16, see pair_gemm.h.
struct Pairs {
  uint32_t* data;
  size_t stride;

  uint32_t* row(size_t i) const { return data + i * stride; }
};

// Matrices of zeros, whose rows are padded.
class PairWorkspace {
 public:
  Pairs pairs(size_t rows, size_t columns) {
    return {take(rows * padded(columns)), padded(columns)};
  }
  Matrix floats(size_t rows, size_t columns) {
    return {reinterpret_cast<float*>(take(rows * padded(columns))), columns, padded(columns)};
  }
  Halves16 halves(size_t rows, size_t columns) {
    return {reinterpret_cast<BFloat16*>(take(rows * padded(columns) / 2)), padded(columns)};
  }

 private:
  uint32_t* take(size_t words) {
    memory_.push_back(hwy::AllocateAligned<uint32_t>(words));
    std::fill_n(memory_.back().get(), words, 0U);
    return memory_.back().get();
  }

  std::vector<hwy::AlignedFreeUniquePtr<uint32_t[]>> memory_;
};

HWY_INLINE Bits low_words(const BFloat16* p, size_t n) {
  return hn::ShiftRight<16>(hn::BitCast(U32(), load(p, n)));
}
HWY_INLINE Bits low_words(const float* p, size_t n) { return bfloat16_words(load(p, n)); }

// out(p,j) = the pair (from(2p,j), from(2p+1,j)); what follows an odd last row is zero.
template <class Rows>
HWY_INLINE void pack_rows(const Rows& from, size_t rows, size_t columns, const Pairs& out) {
  for (size_t i = 0; i < rows; i += 2) {
    uint32_t* const to = out.row(i / 2);
    for (size_t j = 0; j < columns; j += kLanes) {
      Bits words = low_words(from.row(i) + j, columns - j);
      if (i + 1 < rows) {
        const Bits high = low_words(from.row(i + 1) + j, columns - j);
        words = hn::Or(words, hn::ShiftLeft<16>(high));
      }
      hn::StoreU(words, U32(), to + j);
    }
  }
}

// out(e,i) = the pair (from(i,2e), from(i,2e+1)).
HWY_INLINE void pack_columns(const InputRows& from, size_t rows, size_t columns, const Pairs& out) {
  transpose_words(reinterpret_cast<const uint32_t*>(from.data), from.stride / 2, rows, columns / 2,
                  out.data, out.stride);
}
HWY_INLINE InputRows input(const Halves16& rows) { return {rows.data, rows.stride}; }

// to(i,j) = from(i,j) as bfloat16, the padding with it.
HWY_INLINE void round_rows(const Matrix& from, size_t rows, const Halves16& to) {
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < from.columns; j += kLanes) {
      store_full(load_full(from.row(i) + j), to.row(i) + j);
    }
  }
}

// to(2e,i) and to(2e+1,i) = the halves of from(e,i) times scale[i]: rows of a transposed input.
HWY_INLINE void scaled_columns(const Pairs& from, size_t rows, size_t columns, const float* scale,
                               const Halves16& to) {
  for (size_t e = 0; e < columns / 2; ++e) {
    for (size_t i = 0; i < rows; i += kLanes) {
      const Bits words = hn::LoadU(U32(), from.row(e) + i);
      const Vec s = load_full(scale + i);
      const Vec low = hn::BitCast(F32(), hn::ShiftLeft<16>(words));
      const Vec high = hn::BitCast(F32(), hn::And(words, hn::Set(U32(), 0xffff0000U)));
      store_full(hn::Mul(low, s), to.row(2 * e) + i);
      store_full(hn::Mul(high, s), to.row(2 * e + 1) + i);
    }
  }
}

HWY_INLINE void scale_rows(const Matrix& m, size_t rows, const float* scale) {
  for (size_t i = 0; i < rows; ++i) copy_row(m.row(i), m.columns, scale[i], m.row(i));
}

// A chunk's length, and what its rows take from the entering state and give to the leaving one;
// zero behind the last row.
struct ChunkScales {
  ChunkScales(const GlaDecay& decay, const Chunk& chunk) : L(size_t(chunk.length)) {
    for (int64_t i = 0; i < chunk.length; ++i) {
      read[i] = read_scale(decay, chunk, i);
      write[i] = write_scale(decay, chunk, i);
    }
  }

  size_t L;
  float read[kGlaMaxChunk + kPairColumns] = {}, write[kGlaMaxChunk + kPairColumns] = {};
};

struct Multiply {
  PairGemm gemm;

  // out [m,n] = a [m,k] b, or += with `add`; k is made even.
  template <class X>
  HWY_INLINE void operator()(Part part, size_t m, size_t n, size_t k, const HalfRows<X>& a,
                             const Pairs& b, const Matrix& out, bool add) const {
    gemm(part, {m, n, (k + 1) / 2, reinterpret_cast<const uint16_t*>(a.data), a.stride, b.data,
                b.stride, out.data, out.stride, add});
  }
};

HWY_INLINE InputRows rows_of(const HeadRows<const BFloat16>& x, int64_t token, int64_t h) {
  return {x.at(token, h), size_t(x.token_stride)};
}

void forward(const GlaChunkHeads<BFloat16>& a, int64_t b, int64_t h) {
  const size_t dk = size_t(a.dk), dv = size_t(a.dv), C = size_t(a.C);
  const GlaDecay& decay = a.decay[h];
  PairWorkspace workspace;
  const Pairs Kt = workspace.pairs(dk / 2, C), V = workspace.pairs((C + 1) / 2, dv),
              S_rows = workspace.pairs(dk / 2, dv);
  const Matrix P = workspace.floats(C, C), O = workspace.floats(C, dv),
               S = workspace.floats(dk, dv);
  const Halves16 P16 = workspace.halves(C, C), K_write = workspace.halves(dk, C);
  const Multiply multiply{pair_gemm()};
  const int64_t head = b * a.H + h, state_size = a.dk * a.dv;
  if (a.state != nullptr) load_state(a.state + head * state_size, dk, S);
  for (int64_t n = 0; n < a.N; ++n) {
    const Chunk chunk = chunk_at(a, b, n);
    const ChunkScales scales(decay, chunk);
    const size_t L = scales.L;
    const int64_t first = b * a.T + chunk.first;
    const InputRows q = rows_of(a.q, first, h), k = rows_of(a.k, first, h),
                    v = rows_of(a.v, first, h);
    store_state(S, dk, a.chunk_states + (head * a.N + n) * state_size);
    pack_columns(k, L, dk, Kt);
    pack_rows(v, L, dv, V);
    pack_rows(S, dk, dv, S_rows);
    multiply(Part::kLowerResult, L, L, dk, q, Kt, P, false);
    mask_scores(decay, a.C, chunk, kPairRows, P);
    round_rows(P, L, P16);
    multiply(Part::kAll, L, dv, dk, q, S_rows, O, false);
    scale_rows(O, L, scales.read);
    multiply(Part::kLowerA, L, dv, L, P16, V, O, true);
    for (size_t i = 0; i < L; ++i) put_row(O.row(i), dv, false, a.o.at(first + int64_t(i), h));
    scaled_columns(Kt, L, dk, scales.write, K_write);
    fade_state(decay, chunk, dk, S);
    multiply(Part::kAll, dk, dv, L, K_write, V, S, true);
  }
  store_state(S, dk, a.state_out + head * state_size);
}

// Everything backward keeps of one head. X_rows holds pairs of rows of X, Xt pairs of its columns.
struct PairGradients {
  PairGradients(size_t C, size_t dk, size_t dv)
      : Qt(workspace.pairs(dk / 2, C)),
        Kt(workspace.pairs(dk / 2, C)),
        Vt(workspace.pairs(dv / 2, C)),
        Q_rows(workspace.pairs((C + 1) / 2, dk)),
        K_rows(workspace.pairs((C + 1) / 2, dk)),
        dO_rows(workspace.pairs((C + 1) / 2, dv)),
        St(workspace.pairs(dv / 2, dk)),
        dSt(workspace.pairs(dv / 2, dk)),
        dS_rows(workspace.pairs(dk / 2, dv)),
        P(workspace.floats(C, C)),
        dP(workspace.floats(C, C)),
        across(workspace.floats(C, C)),
        dQ(workspace.floats(C, dk)),
        dK(workspace.floats(C, dk)),
        dV(workspace.floats(C, dv)),
        S(workspace.floats(dk, dv)),
        dS(workspace.floats(dk, dv)),
        dP16(workspace.halves(C, C)),
        Pt16(workspace.halves(C, C)),
        dPt16(workspace.halves(C, C)),
        S16(workspace.halves(dk, dv)),
        Q_read(workspace.halves(dk, C)) {}

  PairWorkspace workspace;
  Pairs Qt, Kt, Vt, Q_rows, K_rows, dO_rows, St, dSt, dS_rows;
  Matrix P, dP, across, dQ, dK, dV, S, dS;
  Halves16 dP16, Pt16, dPt16, S16, Q_read;
};

struct ChunkInputs {
  InputRows q, k, v, d_o;
};

HWY_INLINE void pack(const ChunkInputs& in, const ChunkScales& scales, const PairGradients& w) {
  const size_t L = scales.L, dk = w.dQ.columns, dv = w.dV.columns;
  pack_columns(in.q, L, dk, w.Qt);
  pack_columns(in.k, L, dk, w.Kt);
  pack_columns(in.v, L, dv, w.Vt);
  pack_rows(in.q, L, dk, w.Q_rows);
  pack_rows(in.k, L, dk, w.K_rows);
  pack_rows(in.d_o, L, dv, w.dO_rows);
  scaled_columns(w.Qt, L, dk, scales.read, w.Q_read);
  round_rows(w.S, dk, w.S16);
  pack_columns(input(w.S16), dk, dv, w.St);
  round_rows(w.dS, dk, w.S16);
  pack_columns(input(w.S16), dk, dv, w.dSt);
  pack_rows(w.dS, dk, dv, w.dS_rows);
}

// As chunk_gradients in kernel.cpp.
HWY_INLINE void pair_gradients(const GlaDecay& decay, int64_t C, const Chunk& chunk,
                               const ChunkScales& scales, const ChunkInputs& in,
                               const Multiply& multiply, const PairGradients& w) {
  const size_t L = scales.L, dk = w.dQ.columns, dv = w.dV.columns;
  multiply(Part::kLowerResult, L, L, dk, in.q, w.Kt, w.P, false);
  multiply(Part::kLowerResult, L, L, dv, in.d_o, w.Vt, w.dP, false);
  mask_scores(decay, C, chunk, kPairRows, w.P);
  mask_scores(decay, C, chunk, kPairRows, w.dP);
  round_rows(w.dP, L, w.dP16);
  transpose(w.P, L, w.across);
  round_rows(w.across, L, w.Pt16);
  transpose(w.dP, L, w.across);
  round_rows(w.across, L, w.dPt16);

  multiply(Part::kAll, L, dk, dv, in.d_o, w.St, w.dQ, false);
  scale_rows(w.dQ, L, scales.read);
  multiply(Part::kLowerA, L, dk, L, w.dP16, w.K_rows, w.dQ, true);
  multiply(Part::kAll, L, dk, dv, in.v, w.dSt, w.dK, false);
  scale_rows(w.dK, L, scales.write);
  multiply(Part::kUpperA, L, dk, L, w.dPt16, w.Q_rows, w.dK, true);
  multiply(Part::kAll, L, dv, dk, in.k, w.dS_rows, w.dV, false);
  scale_rows(w.dV, L, scales.write);
  multiply(Part::kUpperA, L, dv, L, w.Pt16, w.dO_rows, w.dV, true);
  fade_state(decay, chunk, dk, w.dS);
  multiply(Part::kAll, dk, dv, L, w.Q_read, w.dO_rows, w.dS, true);
}

void backward(const GlaChunkHeads<BFloat16>& a, int64_t b, int64_t h) {
  const size_t dk = size_t(a.dk), dv = size_t(a.dv);
  const PairGradients w(size_t(a.C), dk, dv);
  const Multiply multiply{pair_gemm()};
  const int64_t head = b * a.H + h, state_size = a.dk * a.dv;
  if (a.d_state_out != nullptr) load_state(a.d_state_out + head * state_size, dk, w.dS);
  for (int64_t n = a.N - 1; n >= 0; --n) {
    const Chunk chunk = chunk_at(a, b, n);
    const ChunkScales scales(a.decay[h], chunk);
    const int64_t first = b * a.T + chunk.first;
    const ChunkInputs in{rows_of(a.q, first, h), rows_of(a.k, first, h), rows_of(a.v, first, h),
                         rows_of(a.d_o, first, h)};
    load_state(a.chunk_states + (head * a.N + n) * state_size, dk, w.S);
    pack(in, scales, w);
    pair_gradients(a.decay[h], a.C, chunk, scales, in, multiply, w);
    for (int64_t i = 0; i < chunk.length; ++i) {
      put_row(w.dQ.row(size_t(i)), dk, a.accumulate, a.d_q.at(first + i, h));
      put_row(w.dK.row(size_t(i)), dk, a.accumulate, a.d_k.at(first + i, h));
      put_row(w.dV.row(size_t(i)), dv, a.accumulate, a.d_v.at(first + i, h));
    }
  }
  store_state(w.dS, dk, a.d_state + head * state_size);
}

static GlaChunkKernels<BFloat16> PairKernels() { return {forward, backward}; }

}  // namespace laplace::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace laplace::ops {

bool rows_are_words(const GlaChunkHeads<BFloat16>& a) {
  const auto even = [](const HeadRows<const BFloat16>& x) {
    return x.token_stride % 2 == 0 && x.head_stride % 2 == 0;
  };
  return a.dk % 2 == 0 && a.dv % 2 == 0 && even(a.q) && even(a.k) && even(a.v) && even(a.d_o);
}

HWY_EXPORT(PairKernels);
GlaChunkKernels<BFloat16> gla_chunk_pair_kernels() { return HWY_DYNAMIC_DISPATCH(PairKernels)(); }

}  // namespace laplace::ops
#endif  // HWY_ONCE
