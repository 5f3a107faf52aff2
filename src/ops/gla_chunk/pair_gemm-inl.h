// pair_gemm's loops over `Dot`, the vectors of an instruction set:
//   Dot::kLanes, Dot::Floats, Dot::Words
//   Dot::broadcast(const uint16_t* pair) -> Words
//   Dot::mac(sums, x, w) -> Floats: sums + low x * low w + high x * high w
// Everything is local to the including file.
#pragma once

#include <algorithm>
#include <cstring>

#include "ops/gla_chunk/pair_gemm.h"

namespace laplace::ops {
namespace {

template <class V>
inline V load_vector(const void* from) {
  V v;
  std::memcpy(&v, from, sizeof(V));
  return v;
}

template <class Dot, size_t kRows, size_t kVectors>
inline void pair_tile(size_t pairs, const PairProduct& p, const uint16_t* a, const uint32_t* b,
                      float* c) {
  typename Dot::Floats sums[kRows][kVectors];
  for (size_t i = 0; i < kRows; ++i) {
    for (size_t v = 0; v < kVectors; ++v) {
      sums[i][v] = typename Dot::Floats{};
      if (p.add) {
        sums[i][v] = load_vector<typename Dot::Floats>(c + i * p.ldc + v * Dot::kLanes);
      }
    }
  }
  for (size_t pair = 0; pair < pairs; ++pair) {
    typename Dot::Words w[kVectors];
    for (size_t v = 0; v < kVectors; ++v) {
      w[v] = load_vector<typename Dot::Words>(b + pair * p.ldb + v * Dot::kLanes);
    }
    for (size_t i = 0; i < kRows; ++i) {
      const typename Dot::Words x = Dot::broadcast(a + i * p.lda + 2 * pair);
      for (size_t v = 0; v < kVectors; ++v) sums[i][v] = Dot::mac(sums[i][v], x, w[v]);
    }
  }
  for (size_t i = 0; i < kRows; ++i) {
    for (size_t v = 0; v < kVectors; ++v) {
      std::memcpy(c + i * p.ldc + v * Dot::kLanes, &sums[i][v], sizeof sums[i][v]);
    }
  }
}

// Rows [i, i+kRows) of C, pairs [first, last) of A; three vectors of columns at a time, or two.
template <class Dot, size_t kRows>
void pair_rows(const PairProduct& p, size_t i, size_t columns, size_t first, size_t last) {
  const size_t pairs = last - first;
  const uint16_t* const a = p.a + i * p.lda + 2 * first;
  const uint32_t* const b = p.b + first * p.ldb;
  float* const c = p.c + i * p.ldc;
  const size_t vectors = (columns + kPairColumns - 1) / kPairColumns * kPairColumns / Dot::kLanes;
  size_t v = 0;
  while (v < vectors) {
    const size_t left = vectors - v, j = v * Dot::kLanes;
    if (left == 1) {
      pair_tile<Dot, kRows, 1>(pairs, p, a, b + j, c + j);
      v += 1;
    } else if (left == 2 || left == 4) {
      pair_tile<Dot, kRows, 2>(pairs, p, a, b + j, c + j);
      v += 2;
    } else {
      pair_tile<Dot, kRows, 3>(pairs, p, a, b + j, c + j);
      v += 3;
    }
  }
}

template <class Dot, size_t kRows = kPairRows>
void pair_block(const PairProduct& p, size_t rows, size_t i, size_t columns, size_t first,
                size_t last) {
  if (rows == kRows) {
    pair_rows<Dot, kRows>(p, i, columns, first, last);
  } else if constexpr (kRows > 1) {
    pair_block<Dot, kRows - 1>(p, rows, i, columns, first, last);
  }
}

template <class Dot>
void pair_product(Part part, const PairProduct& p) {
  static_assert(kPairColumns % Dot::kLanes == 0 && kPairRows % 2 == 0);
  for (size_t i = 0; i < p.m; i += kPairRows) {
    const size_t rows = std::min(kPairRows, p.m - i), end = i + rows;
    const size_t columns = part == Part::kLowerResult ? std::min(p.n, end) : p.n;
    const size_t first = part == Part::kUpperA ? i / 2 : 0;
    const size_t last = part == Part::kLowerA ? std::min(p.pairs, (end + 1) / 2) : p.pairs;
    pair_block<Dot>(p, rows, i, columns, first, last);
  }
}

}  // namespace
}  // namespace laplace::ops
