// What the fused kernels of gla_chunk share: matrices in a workspace, and what the decay and the
// documents make of a chunk. Names as in gla_chunk.h: P the masked scores of a chunk, S the state
// entering it.
#if defined(LAPLACE_OPS_GLA_CHUNK_CHUNK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LAPLACE_OPS_GLA_CHUNK_CHUNK_INL_H_
#undef LAPLACE_OPS_GLA_CHUNK_CHUNK_INL_H_
#else
#define LAPLACE_OPS_GLA_CHUNK_CHUNK_INL_H_
#endif

#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <cstring>

#include "ops/gla_chunk/kernel.h"
#include "ops/simd/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace laplace::ops::HWY_NAMESPACE {

HWY_INLINE size_t whole_vectors(size_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// A float32 matrix in the workspace; rows are whole vectors, zero behind the last column.
struct Matrix {
  float* data;
  size_t columns, stride;

  float* row(size_t i) const { return data + i * stride; }
};

// One block of memory, cut into matrices.
class Workspace {
 public:
  explicit Workspace(size_t floats) : memory_(hwy::AllocateAligned<float>(floats)) {
    std::fill_n(memory_.get(), floats, 0.0f);
  }
  Matrix matrix(size_t rows, size_t columns) {
    const Matrix m{memory_.get() + used_, columns, whole_vectors(columns)};
    used_ += rows * m.stride;
    return m;
  }

 private:
  hwy::AlignedFreeUniquePtr<float[]> memory_;
  size_t used_ = 0;
};

// to[i] = from[i] * scale
template <class X>
HWY_INLINE void copy_row(const X* from, size_t n, float scale, float* to) {
  for (size_t i = 0; i < n; i += kLanes) {
    store_full(hn::Mul(load(from + i, n - i), splat(scale)), to + i);
  }
}

template <class X>
HWY_INLINE void put_row(const float* from, size_t n, bool add, X* to) {
  for (size_t i = 0; i < n; i += kLanes) {
    Vec x = load_full(from + i);
    if (add) x = hn::Add(x, load(to + i, n - i));
    store(x, to + i, n - i);
  }
}

// to(j,i) = from(i,j) for a square of four rows and columns, in registers. Strides are in words.
HWY_INLINE void transpose_square(const uint32_t* from, size_t stride, uint32_t* to,
                                 size_t to_stride) {
#if HWY_TARGET == HWY_SCALAR
  for (size_t r = 0; r < 4; ++r) {
    for (size_t c = 0; c < 4; ++c) to[c * to_stride + r] = from[r * stride + c];
  }
#else
  const hn::Full128<uint32_t> four;
  const auto r0 = hn::LoadU(four, from), r1 = hn::LoadU(four, from + stride),
             r2 = hn::LoadU(four, from + 2 * stride), r3 = hn::LoadU(four, from + 3 * stride);
  const auto low01 = hn::InterleaveLower(four, r0, r1), low23 = hn::InterleaveLower(four, r2, r3),
             high01 = hn::InterleaveUpper(four, r0, r1), high23 = hn::InterleaveUpper(four, r2, r3);
  hn::StoreU(hn::ConcatLowerLower(four, low23, low01), four, to);
  hn::StoreU(hn::ConcatUpperUpper(four, low23, low01), four, to + to_stride);
  hn::StoreU(hn::ConcatLowerLower(four, high23, high01), four, to + 2 * to_stride);
  hn::StoreU(hn::ConcatUpperUpper(four, high23, high01), four, to + 3 * to_stride);
#endif
}

// Words of 32 bits: to(j,i) = from(i,j), whatever they hold.
HWY_INLINE void transpose_words(const uint32_t* from, size_t stride, size_t rows, size_t columns,
                                uint32_t* to, size_t to_stride) {
  const size_t square_rows = rows / 4 * 4, square_columns = columns / 4 * 4;
  for (size_t i = 0; i < square_rows; i += 4) {
    for (size_t j = 0; j < square_columns; j += 4) {
      transpose_square(from + i * stride + j, stride, to + j * to_stride + i, to_stride);
    }
  }
  for (size_t i = 0; i < rows; ++i) {
    const size_t begin = i < square_rows ? square_columns : 0;
    for (size_t j = begin; j < columns; ++j) {
      std::memcpy(to + j * to_stride + i, from + i * stride + j, sizeof(uint32_t));
    }
  }
}

HWY_INLINE void transpose(const Matrix& from, size_t rows, const Matrix& to) {
  transpose_words(reinterpret_cast<const uint32_t*>(from.data), from.stride, rows, from.columns,
                  reinterpret_cast<uint32_t*>(to.data), to.stride);
}

// Where a chunk lies and what its documents leave of it.
struct Chunk {
  int64_t first, length;  // tokens of the sequence
  bool has_start = false;
  int64_t first_start = 0;              // rows before it belong to the document that entered
  int64_t last_start = 0;               // rows from it on belong to the document that leaves
  int64_t document[kGlaMaxChunk] = {};  // the row where a row's document begins, 0 for the entering
};

template <class X>
HWY_INLINE Chunk chunk_at(const GlaChunkHeads<X>& a, int64_t b, int64_t n) {
  Chunk chunk{n * a.C, std::min(a.C, a.T - n * a.C)};
  chunk.first_start = chunk.length;
  if (a.doc_start == nullptr) return chunk;
  const uint8_t* const starts = a.doc_start + b * a.T + chunk.first;
  int64_t begin = 0;
  for (int64_t i = 0; i < chunk.length; ++i) {
    if (starts[i] != 0) {
      if (!chunk.has_start) chunk.first_start = i;
      chunk.has_start = true;
      chunk.last_start = begin = i;
    }
    chunk.document[i] = begin;
  }
  return chunk;
}

// scores(i,j) *= dk^-1/2 lambda^{i-j}, and zero where j > i or j is of an earlier document: up to
// the last column that a product with blocks of so many rows reads.
HWY_INLINE void mask_scores(const GlaDecay& decay, int64_t C, const Chunk& chunk,
                            int64_t block_rows, const Matrix& scores) {
  for (int64_t i = 0; i < chunk.length; ++i) {
    float* const row = scores.row(size_t(i));
    const float* const powers = decay.within.data() + (C - 1 - i);
    const int64_t block_end = std::min<int64_t>((i / block_rows + 1) * block_rows, chunk.length);
    for (size_t j = 0; j < size_t(block_end); j += kLanes) {
      store_full(hn::Mul(load_full(row + j), load_full(powers + j)), row + j);
    }
    std::fill_n(row, chunk.document[i], 0.0f);
  }
}

// What row i takes from the entering state, and gives to the leaving one.
HWY_INLINE float read_scale(const GlaDecay& decay, const Chunk& chunk, int64_t i) {
  return i < chunk.first_start ? decay.read[size_t(i)] : 0.0f;
}
HWY_INLINE float write_scale(const GlaDecay& decay, const Chunk& chunk, int64_t i) {
  return i < chunk.last_start ? 0.0f : decay.powers[size_t(chunk.length - 1 - i)];
}

// S lambda^L as S + S (lambda^L - 1), see portable.cpp; nothing is left behind a document's start.
HWY_INLINE void fade_state(const GlaDecay& decay, const Chunk& chunk, size_t dk, const Matrix& S) {
  const Vec fade = splat(chunk.has_start ? -1.0f : decay.fade(chunk.length));
  for (size_t i = 0; i < dk * S.stride; i += kLanes) {
    const Vec s = load_full(S.data + i);
    store_full(hn::MulAdd(s, fade, s), S.data + i);
  }
}

HWY_INLINE void load_state(const float* from, size_t dk, const Matrix& S) {
  for (size_t i = 0; i < dk; ++i) copy_row(from + i * S.columns, S.columns, 1.0f, S.row(i));
}
HWY_INLINE void store_state(const Matrix& S, size_t dk, float* to) {
  for (size_t i = 0; i < dk; ++i) put_row(S.row(i), S.columns, false, to + i * S.columns);
}

}  // namespace laplace::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // guard
