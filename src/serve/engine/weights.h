// Where an executor reads its weights from: a model directory, or nowhere (random ones, for
// benchmarks of models that nobody has trained). No LibTorch here.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/files.h"
#include "model/config.h"

namespace laplace {

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // Row `row` of a parameter (docs/files.md has the names; a vector has one row) into `out` as
  // float32. May be called from several threads at once.
  virtual void read(const std::string& name, int64_t row, float* out) const = 0;
  // Whether its values are all bfloat16.
  virtual bool is_bfloat16(const std::string& name) const = 0;
};

// The weights of a model directory, through a memory map. Throws Error(kBadInput) as load_weights
// does.
std::unique_ptr<WeightSource> open_weights(const Path& directory, const ModelConfig& config);

// Values of about the size that training starts from, rounded to bfloat16, made row by row when
// they are asked for. Equal seeds give equal weights.
std::unique_ptr<WeightSource> random_weights(const ModelConfig& config, uint64_t seed);

}  // namespace laplace
