// AdamW: Adam with decoupled weight decay.
//
//   m = β1 m + (1 - β1) g         v = β2 v + (1 - β2) g²
//   p = (1 - lr wd) p - lr (m / (1 - β1ᵗ)) / (√(v / (1 - β2ᵗ)) + ε)        t counts from 1
//
// Sources: Kingma and Ba (ICLR 2015); Loshchilov and Hutter, "Decoupled Weight Decay
// Regularization" (ICLR 2019), Algorithm 2. Every element is computed on its own: same bits for any
// sharding and any number of threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "optim/param.h"

namespace laplace {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
};

// The numbers of one step, worked out in float64 on the host.
struct AdamWStep {
  double beta1, beta2, eps;
  double keep;              // 1 - lr wd
  double rate;              // lr / (1 - β1ᵗ)
  double inverse_sqrt_bc2;  // 1 / √(1 - β2ᵗ)
};

// One pass over contiguous CPU tensors of float32 or float64.
void adamw_update_cpu(const AdamWStep& step, const at::Tensor& p, const at::Tensor& m,
                      const at::Tensor& v, const at::Tensor& g);
// The same in ATen operators, for any device. `scratch`: like p, overwritten.
void adamw_update_portable(const AdamWStep& step, const at::Tensor& p, const at::Tensor& m,
                           const at::Tensor& v, const at::Tensor& g, const at::Tensor& scratch);

// One thread at a time. Checkpoints save and fill exp_avg(), exp_avg_sq() and steps().
class AdamW {
 public:
  AdamW(std::vector<OptimParam> params, const AdamWOptions& options);

  void step(std::span<const at::Tensor> gradients, double rate);

  std::span<const OptimParam> params() const { return params_; }
  std::span<const at::Tensor> exp_avg() const { return exp_avg_; }        // m, one a parameter
  std::span<const at::Tensor> exp_avg_sq() const { return exp_avg_sq_; }  // v
  int64_t steps() const { return steps_; }                                // taken so far
  void set_steps(int64_t steps);

 private:
  at::Tensor scratch_like(const at::Tensor& tensor);

  std::vector<OptimParam> params_;
  AdamWOptions options_;
  std::vector<at::Tensor> exp_avg_;
  std::vector<at::Tensor> exp_avg_sq_;
  at::Tensor scratch_;  // flat, as large as the largest parameter; only off the one-pass form
  int64_t steps_ = 0;
};

}  // namespace laplace
