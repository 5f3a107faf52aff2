// What an optimiser is given to update, and the checks both optimisers make.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace laplace {

// Elements that a thread of an element loop takes at least.
inline constexpr int64_t kElementGrain = int64_t{1} << 15;

struct OptimParam {
  std::string name;   // in error messages
  at::Tensor tensor;  // the master copy, updated in place; contiguous float32 (float64 in tests)
  // Ends of the row blocks of a fused matrix, the last one its number of rows; empty: one block.
  // Used by Muon with per_block only.
  std::vector<int64_t> block_rows;
  bool weight_decay = true;  // AdamW only; Muon decays all its matrices
};

// Throws unless every tensor is defined, contiguous and float32 or float64.
void check_params(std::span<const OptimParam> params);
// Throws unless there is one gradient a parameter, of its shape, dtype and device.
void check_gradients(std::span<const OptimParam> params, std::span<const at::Tensor> gradients);

}  // namespace laplace
