// The one table of a model's parameters. Training, sharding, checkpoints and serving all read it,
// so a parameter's name, shape, optimiser and initial values are stated here and nowhere else.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"

namespace laplace {

// Which optimiser trains it.
enum class ParameterRole { kMuon, kAdamW };

enum class Init {
  kNormal,          // N(0, 0.02²)
  kNormalResidual,  // N(0, 0.02² / 2L): what writes into the residual stream
  kUniformConv,     // U(-k^-1/2, k^-1/2)
  kOnes,
  kZeros,
};

struct ParameterSpec {
  std::string name;            // "layers.0.qkvg.weight"
  std::vector<int64_t> shape;  // [rows, ...]
  ParameterRole role = ParameterRole::kAdamW;
  // Where each block of rows ends. Fused matrices have several: qkvg {H·dk, 2H·dk, 2H·dk + H·dv,
  // 2H·dk + 2H·dv}, gate_up {F, 2F}. All others have one, {rows}.
  std::vector<int64_t> block_rows;
  Init init = Init::kNormal;
  int64_t layer = -1;  // -1: outside the layers

  int64_t rows() const { return shape[0]; }
  int64_t numel() const;
  // Elements of one row.
  int64_t row_size() const { return numel() / rows(); }
};

// All parameters in their fixed order: embedding, layer by layer, final norm, head.
std::vector<ParameterSpec> parameter_table(const ModelConfig& config);

// Fills `out` with the initial values of rows [first_row, first_row + out.size(0)) of a parameter.
// `out`: contiguous float32 on the CPU, [any number of rows, the spec's other dimensions].
// Element i is a function of (seed, the parameter's name, i) alone, hence the same for any order,
// number of threads and sharding. Runs on ATen's threads. Throws Error(kFailure) for another `out`.
void init_parameter(const ParameterSpec& spec, const ModelConfig& config, uint64_t seed,
                    const at::Tensor& out, int64_t first_row = 0);

}  // namespace laplace
