// What the operators share: finding a dispatcher entry, the dtype sums are carried in, shape
// checks.
//
// How an operator is put together (gla_chunk/ is the fullest example):
//   <name>.h        the face: maths, shapes, dtypes, errors
//   <name>.cpp      the dispatcher schema, argument checks, and the autograd node
//   portable.cpp    ATen operators only, registered for every device (CompositeExplicitAutograd)
// A kernel for one device registers under its own key and takes precedence there; the autograd node
// redispatches below autograd, so such a kernel never loses gradients.
//
// The portable forms keep to operators that young accelerator backends have: mm, bmm, add, mul,
// exp, sigmoid, silu, sum, mean, rsqrt, where, cat, embedding, log_softmax, nll_loss.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <initializer_list>
#include <optional>

namespace laplace::ops {

using OptionalTensor = std::optional<at::Tensor>;

// The typed handle of `laplace::<name>`; keep it in a function-local static.
template <class Signature>
c10::TypedOperatorHandle<Signature> dispatcher_entry(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").template typed<Signature>();
}

// float64 for float64, float32 for everything else.
inline at::ScalarType sum_dtype(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

// Refuses dtypes other than float64, float32, bfloat16.
void check_floating(const char* op, const char* name, const at::Tensor& tensor);
// Refuses a tensor whose shape is not `shape`; -1 stands for any size.
void check_shape(const char* op, const char* name, const at::Tensor& tensor,
                 std::initializer_list<int64_t> shape);
// Refuses a tensor whose dtype is not `dtype`.
void check_dtype(const char* op, const char* name, const at::Tensor& tensor, at::ScalarType dtype);
// doc_start [B,T], bool or an integer type; absent is fine.
void check_doc_start(const char* op, const OptionalTensor& doc_start, int64_t B, int64_t T);

// doc_start as 0/1 in `dtype` on the device of `like`; nothing where it is absent, or on the host
// and all zero (the common case of a row inside one document costs nothing then).
OptionalTensor doc_start_mask(const OptionalTensor& doc_start, const at::Tensor& like,
                              at::ScalarType dtype);

// True if autograd has to see any of the tensors.
bool any_requires_grad(std::initializer_list<const OptionalTensor*> tensors);
// Refuses them: for an operator that has no backward.
void check_no_gradients(const char* op, std::initializer_list<const OptionalTensor*> tensors);

}  // namespace laplace::ops
