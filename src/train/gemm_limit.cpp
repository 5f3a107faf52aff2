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
#include "model/parameters.h"

namespace laplace {

namespace {

// Seconds for the three products of a weight [n,k] with `rows` tokens, best of two after a warm-up.
double time_products(int64_t rows, int64_t n, int64_t k, const at::TensorOptions& options) {
  const at::Tensor x = at::ones({rows, k}, options), w = at::ones({n, k}, options),
                   dy = at::ones({rows, n}, options);
  at::Tensor y = at::empty({rows, n}, options), dx = at::empty({rows, k}, options),
             dw = at::empty({n, k}, options);
  double best = 1e30;
  for (int round = 0; round < 3; ++round) {
    const Stopwatch watch;
    at::mm_out(y, x, w.t());
    at::mm_out(dx, dy, w);
    at::mm_out(dw, dy.t(), x);
    if (round > 0) best = std::min(best, watch.seconds());
  }
  return best;
}

}  // namespace

GemmLimit measure_gemm_limit(const ModelConfig& config, int64_t rows, at::ScalarType dtype,
                             c10::Device device) {
  const c10::NoGradGuard no_grad;
  std::map<std::pair<int64_t, int64_t>, int64_t> shapes;  // and how often each occurs
  for (const ParameterSpec& spec : parameter_table(config)) {
    const bool multiplies = spec.role == ParameterRole::kMuon || spec.name == "head.weight";
    if (multiplies) ++shapes[{spec.shape[0], spec.shape[1]}];
  }
  const auto options = at::TensorOptions(dtype).device(device);
  double seconds = 0, flops = 0;
  for (const auto& [shape, count] : shapes) {
    seconds += double(count) * time_products(rows, shape.first, shape.second, options);
    flops += double(count) * 6.0 * double(rows) * double(shape.first) * double(shape.second);
  }
  return {seconds / double(rows), flops / seconds};
}

}  // namespace laplace
