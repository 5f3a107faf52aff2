// The two element-wise phases of a Muon step, before and after the orthogonalisation. Both work on
// any run of rows, so that a rank can hold a shard of them and the whole matrix exist only between.
// Every element is computed on its own: same bits for any sharding and any number of threads.
#pragma once

#include <ATen/core/Tensor.h>

namespace laplace {

// m = μ m + (1 - μ) g,   update = nesterov ? μ m + (1 - μ) g : m
// m, g: float32 or float64; update: the dtype of the orthogonalisation, never the memory of m.
void muon_momentum(const at::Tensor& m, const at::Tensor& g, double momentum, bool nesterov,
                   const at::Tensor& update);

// p = keep p - step o,   o in any dtype
void muon_apply(const at::Tensor& p, const at::Tensor& o, double keep, double step);

}  // namespace laplace
