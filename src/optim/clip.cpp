// See clip.h.
#include "optim/clip.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "optim/param.h"

namespace laplace {

namespace {

constexpr int64_t kLanes = 8;

template <class T>
double row_sum(const T* row, int64_t count) {
  std::array<double, kLanes> lanes{};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) {
      const double x = static_cast<double>(row[i + j]);
      lanes[j] += x * x;
    }
  }
  for (int64_t j = 0; i + j < count; ++j) {
    const double x = static_cast<double>(row[i + j]);
    lanes[j] += x * x;
  }
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
         ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

// x: [rows, columns] contiguous; sums: [rows]
template <class T>
void row_sums(const T* x, int64_t rows, int64_t columns, double* sums) {
  const int64_t grain = std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, columns));
  at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) sums[row] = row_sum(x + row * columns, columns);
  });
}

// Where the elements are not at hand: the device's own norm, whose squares float32 can hold as long
// as none exceeds 1e19.
double square_of_device_norm(const at::Tensor& tensor) {
  const double norm =
      at::linalg_vector_norm(tensor.flatten(), 2, std::nullopt, false, at::kFloat).item<double>();
  return norm * norm;
}

}  // namespace

double SquareSummer::sum(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  if (!tensor.is_cpu()) return square_of_device_norm(tensor);
  const at::Tensor x = tensor.contiguous();
  const int64_t rows = x.dim() == 0 ? 1 : x.size(0);
  const int64_t columns = x.numel() / rows;
  if (row_sums_.size() < size_t(rows)) row_sums_.resize(rows);
  switch (x.scalar_type()) {
    case at::kFloat:
      row_sums(x.const_data_ptr<float>(), rows, columns, row_sums_.data());
      break;
    case at::kDouble:
      row_sums(x.const_data_ptr<double>(), rows, columns, row_sums_.data());
      break;
    case at::kBFloat16:
      row_sums(x.const_data_ptr<c10::BFloat16>(), rows, columns, row_sums_.data());
      break;
    default:
      fail("norm: no sum of squares for tensors of ", x.scalar_type());
  }
  double total = 0;
  for (int64_t row = 0; row < rows; ++row) total += row_sums_[row];
  return total;
}

GradientClipper::GradientClipper(double max_norm) : max_norm_(max_norm) {
  if (!(max_norm >= 0) || !std::isfinite(max_norm)) {
    fail_input("gradient clipping: max_norm ", max_norm,
               " must be a finite number above 0, or 0 for none");
  }
}

double GradientClipper::norm(std::span<const at::Tensor> gradients) {
  double total = 0;
  for (const at::Tensor& gradient : gradients) total += squares_.sum(gradient);
  return std::sqrt(total);
}

ClipResult GradientClipper::clip(std::span<const at::Tensor> gradients) {
  const at::NoGradGuard no_grad;
  ClipResult result;
  result.norm = norm(gradients);
  result.finite = std::isfinite(result.norm);
  if (!result.finite || max_norm_ == 0) return result;
  result.scale = std::min(1.0, max_norm_ / (result.norm + 1e-6));
  if (result.scale == 1) return result;
  for (const at::Tensor& gradient : gradients) gradient.mul_(result.scale);
  return result;
}

}  // namespace laplace
