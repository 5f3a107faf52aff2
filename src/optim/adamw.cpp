// See adamw.h.
#include "optim/adamw.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <utility>

#include "base/error.h"
#include "optim/param.h"

namespace laplace {

namespace {

template <class T>
void update_range(const AdamWStep& step, int64_t count, T* __restrict p, T* __restrict m,
                  T* __restrict v, const T* __restrict g) {
  const T keep_m = T(step.beta1), add_m = T(1 - step.beta1);
  const T keep_v = T(step.beta2), add_v = T(1 - step.beta2);
  const T keep = T(step.keep), rate = T(step.rate);
  const T inverse_sqrt_bc2 = T(step.inverse_sqrt_bc2), eps = T(step.eps);
  for (int64_t i = 0; i < count; ++i) {
    m[i] = keep_m * m[i] + add_m * g[i];
    v[i] = keep_v * v[i] + add_v * (g[i] * g[i]);
    p[i] = keep * p[i] - rate * m[i] / (std::sqrt(v[i]) * inverse_sqrt_bc2 + eps);
  }
}

template <class T>
void update_all(const AdamWStep& step, const at::Tensor& p, const at::Tensor& m,
                const at::Tensor& v, const at::Tensor& g) {
  T* const p_data = p.mutable_data_ptr<T>();
  T* const m_data = m.mutable_data_ptr<T>();
  T* const v_data = v.mutable_data_ptr<T>();
  const T* const g_data = g.const_data_ptr<T>();
  at::parallel_for(0, p.numel(), kElementGrain, [&](int64_t begin, int64_t end) {
    update_range(step, end - begin, p_data + begin, m_data + begin, v_data + begin, g_data + begin);
  });
}

void check_options(const AdamWOptions& options) {
  const auto is_beta = [](double beta) { return beta >= 0 && beta < 1; };
  if (!is_beta(options.beta1) || !is_beta(options.beta2)) {
    fail_input("AdamW: betas ", options.beta1, " and ", options.beta2,
               " must be at least 0 and below 1");
  }
  if (!(options.eps > 0)) fail_input("AdamW: eps ", options.eps, " must be above 0");
  if (!(options.weight_decay >= 0)) {
    fail_input("AdamW: weight_decay ", options.weight_decay, " must be at least 0");
  }
}

}  // namespace

void adamw_update_cpu(const AdamWStep& step, const at::Tensor& p, const at::Tensor& m,
                      const at::Tensor& v, const at::Tensor& g) {
  if (p.scalar_type() == at::kDouble) {
    update_all<double>(step, p, m, v, g);
  } else {
    update_all<float>(step, p, m, v, g);
  }
}

void adamw_update_portable(const AdamWStep& step, const at::Tensor& p, const at::Tensor& m,
                           const at::Tensor& v, const at::Tensor& g, const at::Tensor& scratch) {
  m.mul_(step.beta1).add_(g, 1 - step.beta1);
  v.mul_(step.beta2).addcmul_(g, g, 1 - step.beta2);
  at::Tensor denominator = scratch;
  at::sqrt_out(denominator, v).mul_(step.inverse_sqrt_bc2).add_(step.eps);
  p.mul_(step.keep).addcdiv_(m, denominator, -step.rate);
}

AdamW::AdamW(std::vector<OptimParam> params, const AdamWOptions& options)
    : params_(std::move(params)), options_(options) {
  check_options(options_);
  check_params(params_);
  const at::NoGradGuard no_grad;
  for (const OptimParam& param : params_) {
    exp_avg_.push_back(at::zeros_like(param.tensor));
    exp_avg_sq_.push_back(at::zeros_like(param.tensor));
  }
}

void AdamW::step(std::span<const at::Tensor> gradients, double rate) {
  check_gradients(params_, gradients);
  const at::NoGradGuard no_grad;
  ++steps_;
  const double bc1 = 1 - std::pow(options_.beta1, double(steps_));
  const double bc2 = 1 - std::pow(options_.beta2, double(steps_));
  AdamWStep step{options_.beta1, options_.beta2, options_.eps, 1.0, rate / bc1, 1 / std::sqrt(bc2)};
  for (size_t i = 0; i < params_.size(); ++i) {
    const at::Tensor& p = params_[i].tensor;
    step.keep = params_[i].weight_decay ? 1 - rate * options_.weight_decay : 1;
    if (p.is_cpu() && gradients[i].is_contiguous()) {
      adamw_update_cpu(step, p, exp_avg_[i], exp_avg_sq_[i], gradients[i]);
    } else {
      adamw_update_portable(step, p, exp_avg_[i], exp_avg_sq_[i], gradients[i], scratch_like(p));
    }
  }
}

void AdamW::set_steps(int64_t steps) {
  if (steps < 0) fail_input("AdamW: ", steps, " steps taken makes no sense; it counts from 0");
  steps_ = steps;
}

at::Tensor AdamW::scratch_like(const at::Tensor& tensor) {
  if (!scratch_.defined()) {
    int64_t largest = 0;
    for (const OptimParam& param : params_) largest = std::max(largest, param.tensor.numel());
    scratch_ = at::empty({largest}, tensor.options().requires_grad(false));
  }
  return scratch_.narrow(0, 0, tensor.numel()).view(tensor.sizes());
}

}  // namespace laplace
