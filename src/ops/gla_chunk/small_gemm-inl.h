// Products of small float32 matrices that lie in L1 and L2: C = A B, or C += A B.
//
// A's elements are broadcast, so A may have any strides; rows of B and C are whole vectors. Each
// element is a sum in ascending order of k: its bits depend on nothing else.
#if defined(LAPLACE_OPS_GLA_CHUNK_SMALL_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LAPLACE_OPS_GLA_CHUNK_SMALL_GEMM_INL_H_
#undef LAPLACE_OPS_GLA_CHUNK_SMALL_GEMM_INL_H_
#else
#define LAPLACE_OPS_GLA_CHUNK_SMALL_GEMM_INL_H_
#endif

#include <algorithm>

#include "ops/gla_chunk/chunk-inl.h"
#include "ops/gla_chunk/part.h"
#include "ops/simd/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace laplace::ops::HWY_NAMESPACE {

// A(i,k) = data[i * row + k * column].
struct Broadcast {
  const float* data;
  size_t row, column;
};
HWY_INLINE Broadcast plain(const Matrix& m) { return {m.data, m.stride, 1}; }
HWY_INLINE Broadcast transposed(const Matrix& m) { return {m.data, 1, m.stride}; }

inline constexpr size_t kBlockRows = 6;  // with two vectors of columns: 12 sums in registers

template <size_t kRows, size_t kVectors>
HWY_INLINE void tile(size_t k_begin, size_t k_end, Broadcast a, const float* b, size_t ldb,
                     float* c, size_t ldc, bool add) {
  Vec sums[kRows][kVectors];
  for (size_t i = 0; i < kRows; ++i) {
    for (size_t v = 0; v < kVectors; ++v) {
      sums[i][v] = add ? load_full(c + i * ldc + v * kLanes) : splat(0);
    }
  }
  for (size_t k = k_begin; k < k_end; ++k) {
    Vec row[kVectors];
    for (size_t v = 0; v < kVectors; ++v) row[v] = load_full(b + k * ldb + v * kLanes);
    for (size_t i = 0; i < kRows; ++i) {
      const Vec x = splat(a.data[i * a.row + k * a.column]);
      for (size_t v = 0; v < kVectors; ++v) sums[i][v] = hn::MulAdd(x, row[v], sums[i][v]);
    }
  }
  for (size_t i = 0; i < kRows; ++i) {
    for (size_t v = 0; v < kVectors; ++v) store_full(sums[i][v], c + i * ldc + v * kLanes);
  }
}

template <size_t kRows>
HWY_INLINE void row_block(size_t n, size_t k_begin, size_t k_end, Broadcast a, const float* b,
                          size_t ldb, float* c, size_t ldc, bool add) {
  size_t j = 0;
  for (; j + 2 * kLanes <= n; j += 2 * kLanes) {
    tile<kRows, 2>(k_begin, k_end, a, b + j, ldb, c + j, ldc, add);
  }
  if (j < n) tile<kRows, 1>(k_begin, k_end, a, b + j, ldb, c + j, ldc, add);
}

// C [m,n] = A [m,k] B [k,n], or += with `add`. n is rounded up to whole vectors: rows of B and C
// are at least that long.
template <Part kPart>
void small_gemm(size_t m, size_t n, size_t k, Broadcast a, const float* b, size_t ldb, float* c,
                size_t ldc, bool add) {
  for (size_t i = 0; i < m; i += kBlockRows) {
    const size_t rows = std::min(kBlockRows, m - i);
    const size_t k_begin = kPart == Part::kUpperA ? i : 0;
    const size_t k_end = kPart == Part::kLowerA ? std::min(k, i + rows) : k;
    const size_t wide = whole_vectors(kPart == Part::kLowerResult ? std::min(n, i + rows) : n);
    const Broadcast a_block{a.data + i * a.row, a.row, a.column};
    float* const c_block = c + i * ldc;
    switch (rows) {
      case 6:
        row_block<6>(wide, k_begin, k_end, a_block, b, ldb, c_block, ldc, add);
        break;
      case 5:
        row_block<5>(wide, k_begin, k_end, a_block, b, ldb, c_block, ldc, add);
        break;
      case 4:
        row_block<4>(wide, k_begin, k_end, a_block, b, ldb, c_block, ldc, add);
        break;
      case 3:
        row_block<3>(wide, k_begin, k_end, a_block, b, ldb, c_block, ldc, add);
        break;
      case 2:
        row_block<2>(wide, k_begin, k_end, a_block, b, ldb, c_block, ldc, add);
        break;
      default:
        row_block<1>(wide, k_begin, k_end, a_block, b, ldb, c_block, ldc, add);
        break;
    }
  }
}

}  // namespace laplace::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // guard
