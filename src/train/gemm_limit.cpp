// See gemm_limit.h.
#include "train/gemm_limit.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/progress.h"
#include "model/decoder.h"

namespace laplace {

namespace {

// Seconds for the products of a weight [n,k] with `tokens` tokens, best of two after a warm-up.
struct ProductTimes {
  double forward = 1e30, backward = 1e30;
};
ProductTimes time_products(int64_t tokens, int64_t n, int64_t k, const at::TensorOptions& options) {
  // The head's result for many tokens would be larger than all else that training needs; so many
  // rows are as fast as more.
  constexpr int64_t kMostElements = int64_t{1} << 26;
  const int64_t rows = std::min(tokens, std::max<int64_t>(kMostElements / n, 512));
  const at::Tensor x = at::ones({rows, k}, options), w = at::ones({n, k}, options),
                   dy = at::ones({rows, n}, options);
  at::Tensor y = at::empty({rows, n}, options), dx = at::empty({rows, k}, options),
             dw = at::empty({n, k}, options);
  ProductTimes best;
  for (int round = 0; round < 3; ++round) {
    Stopwatch watch;
    at::mm_out(y, x, w.t());
    const double forward = watch.seconds();
    watch.restart();
    at::mm_out(dx, dy, w);
    at::mm_out(dw, dy.t(), x);
    if (round == 0) continue;
    best.forward = std::min(best.forward, forward);
    best.backward = std::min(best.backward, watch.seconds());
  }
  const double scale = double(tokens) / double(rows);
  return {best.forward * scale, best.backward * scale};
}

}  // namespace

GemmLimit measure_gemm_limit(const ModelConfig& config, int64_t rows, at::ScalarType dtype,
                             c10::Device device) {
  const c10::NoGradGuard no_grad;
  std::map<std::pair<int64_t, int64_t>, int64_t> shapes;  // and how often each occurs
  for (const ParameterSpec& spec : parameter_table(config)) {
    if (is_matrix_product(spec)) ++shapes[{spec.shape[0], spec.shape[1]}];
  }
  const auto options = at::TensorOptions(dtype).device(device);
  double seconds = 0, forward = 0, flops = 0;
  for (const auto& [shape, count] : shapes) {
    const ProductTimes times = time_products(rows, shape.first, shape.second, options);
    seconds += double(count) * (times.forward + times.backward);
    if (shape.first != config.vocab_size) forward += double(count) * times.forward;
    flops += double(count) * 6.0 * double(rows) * double(shape.first) * double(shape.second);
  }
  return {seconds / double(rows), flops / seconds, forward / double(rows)};
}

}  // namespace laplace
