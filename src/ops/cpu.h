// What the fused kernels' registrations share: when they run, and how they see tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <type_traits>

#include "ops/common.h"
#include "ops/simd/head_rows.h"
#include "ops/simd/targets.h"

namespace laplace::ops {

static_assert(sizeof(BFloat16) == sizeof(c10::BFloat16));

// float64 is for tests: it takes the portable form.
inline bool takes_fused(const at::Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  return fused_kernels() && (dtype == at::kFloat || dtype == at::kBFloat16);
}

// Calls `body` with a null pointer of the kernels' element type: float or BFloat16.
template <class Body>
auto with_element(at::ScalarType dtype, const Body& body) {
  if (dtype == at::kBFloat16) return body(static_cast<BFloat16*>(nullptr));
  return body(static_cast<float*>(nullptr));
}

template <class T>
const T* read(const at::Tensor& tensor) {
  return static_cast<const T*>(tensor.const_data_ptr());
}
template <class T>
T* written(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

// A contiguous float32 copy, or the tensor itself where it is that already.
inline at::Tensor as_float(const at::Tensor& tensor) { return tensor.to(at::kFloat).contiguous(); }

// doc_start as bytes [B,T]; undefined where no document begins (or none is given).
at::Tensor doc_start_bytes(const OptionalTensor& doc_start);

// True where [B,T,H,d] can be seen as HeadRows: elements of a head lie side by side and tokens at
// one stride over all sequences.
inline bool has_head_rows(const at::Tensor& x) {
  return x.stride(3) == 1 && (x.size(0) == 1 || x.stride(0) == x.stride(1) * x.size(1));
}
// `x` itself where that is so, else a contiguous copy.
inline at::Tensor with_head_rows(const at::Tensor& x) {
  return has_head_rows(x) ? x : x.contiguous();
}
template <class T>
HeadRows<const T> read_rows(const at::Tensor& x) {
  return {read<T>(x), x.stride(1), x.stride(2)};
}
template <class T>
HeadRows<T> written_rows(const at::Tensor& x) {
  return {written<T>(x), x.stride(1), x.stride(2)};
}

// The sums over tokens that backward needs (a weight's gradient) are taken over blocks of this many
// tokens, then over blocks in their order: the same bits for any number of threads.
inline constexpr int64_t kSumBlock = 64;

// How many items of `elements` a thread takes at least: starting threads costs some microseconds.
inline int64_t grain_of(int64_t elements) {
  constexpr int64_t kElements = int64_t{1} << 14;
  return std::max<int64_t>(1, kElements / std::max<int64_t>(1, elements));
}

inline int64_t blocks_of(int64_t count, int64_t block) { return (count + block - 1) / block; }

}  // namespace laplace::ops
