// gla_step on the CPU: the fused kernel, parallel over slots and heads.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <cmath>

#include "ops/cpu.h"
#include "ops/gla_step/gla_step.h"
#include "ops/gla_step/kernel.h"

namespace laplace::ops {

namespace {

at::Tensor step(const at::Tensor& q_in, const at::Tensor& k_in, const at::Tensor& v_in,
                const at::Tensor& log_decay, at::Tensor& state) {
  if (!takes_fused(q_in) || !state.is_contiguous()) {
    return gla_step_portable(q_in, k_in, v_in, log_decay, state);
  }
  const at::Tensor q = q_in.contiguous(), k = k_in.contiguous(), v = v_in.contiguous(),
                   rates = log_decay.contiguous();
  const int64_t H = q.size(1), dk = q.size(2), dv = v.size(2);
  const float scale = float(1.0 / std::sqrt(double(dk)));
  std::vector<float> fades;
  for (int64_t h = 0; h < H; ++h) {
    fades.push_back(float(std::expm1(double(read<float>(rates)[h]))));
  }
  at::Tensor o = at::empty(v.sizes(), v.options());
  with_element(q.scalar_type(), [&]<class T>(T*) {
    const auto kernel = gla_step_kernel<T>();
    at::parallel_for(0, q.size(0) * H, grain_of(dk * dv), [&](int64_t first, int64_t last) {
      std::vector<float> sums(static_cast<size_t>(dv));
      for (int64_t i = first; i < last; ++i) {
        kernel(dk, dv, read<T>(q) + i * dk, read<T>(k) + i * dk, read<T>(v) + i * dv,
               fades[size_t(i % H)], scale, written<float>(state) + i * dk * dv, sums.data(),
               written<T>(o) + i * dv);
      }
    });
  });
  return o;
}

}  // namespace

}  // namespace laplace::ops

TORCH_LIBRARY_IMPL(laplace, CPU, library) { library.impl("gla_step_forward", laplace::ops::step); }
