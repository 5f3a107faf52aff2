// See common.h. Also the place where the library `laplace` is declared to the dispatcher.
#include "ops/common.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

#include <algorithm>

namespace laplace::ops {

void check_floating(const char* op, const char* name, const at::Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  TORCH_CHECK(dtype == at::kDouble || dtype == at::kFloat || dtype == at::kBFloat16,
              "laplace::", op, ": ", name, " has dtype ", dtype,
              ", but must be float64, float32 or bfloat16");
}

void check_shape(const char* op, const char* name, const at::Tensor& tensor,
                 std::initializer_list<int64_t> shape) {
  const bool fits = tensor.dim() == int64_t(shape.size()) &&
                    std::equal(shape.begin(), shape.end(), tensor.sizes().begin(),
                               [](int64_t want, int64_t got) { return want < 0 || want == got; });
  TORCH_CHECK(fits, "laplace::", op, ": ", name, " has shape ", tensor.sizes(), ", but must be ",
              c10::IntArrayRef(shape), " (-1: any size)");
}

void check_dtype(const char* op, const char* name, const at::Tensor& tensor, at::ScalarType dtype) {
  TORCH_CHECK(tensor.scalar_type() == dtype, "laplace::", op, ": ", name, " has dtype ",
              tensor.scalar_type(), ", but must be ", dtype);
}

void check_doc_start(const char* op, const OptionalTensor& doc_start, int64_t B, int64_t T) {
  if (!doc_start) return;
  check_shape(op, "doc_start", *doc_start, {B, T});
  TORCH_CHECK(c10::isIntegralType(doc_start->scalar_type(), /*includeBool=*/true), "laplace::", op,
              ": doc_start has dtype ", doc_start->scalar_type(),
              ", but must be bool or an integer");
}

OptionalTensor doc_start_mask(const OptionalTensor& doc_start, const at::Tensor& like,
                              at::ScalarType dtype) {
  if (!doc_start) return std::nullopt;
  if (doc_start->device().is_cpu() && !doc_start->any().item<bool>()) return std::nullopt;
  return doc_start->ne(0).to(like.device(), dtype);
}

at::Tensor doc_start_bytes(const OptionalTensor& doc_start) {
  if (!doc_start || !doc_start->any().item<bool>()) return {};
  return doc_start->ne(0).to(at::kByte).contiguous();
}

bool any_requires_grad(std::initializer_list<const OptionalTensor*> tensors) {
  return c10::GradMode::is_enabled() &&
         std::any_of(tensors.begin(), tensors.end(),
                     [](const OptionalTensor* t) { return *t && (*t)->requires_grad(); });
}

void check_no_gradients(const char* op, std::initializer_list<const OptionalTensor*> tensors) {
  TORCH_CHECK(!any_requires_grad(tensors), "laplace::", op,
              " has no gradients: detach what requires them, or call it under no_grad");
}

}  // namespace laplace::ops

TORCH_LIBRARY(laplace, library) { (void)library; }
