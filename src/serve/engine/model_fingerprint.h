// What tells a model's saved states from another model's.
#pragma once

#include <string>

#include "base/files.h"
#include "model/config.h"

namespace laplace {

// Sixteen hexadecimal digits that stand for a model: XXH64 over its configuration and every byte of
// its weights, so that two checkpoints of one run differ and a resharded copy does not. Reads all
// weights (some 10 GB/s when they are in the page cache). `directory`: as open_model_directory
// returns it. Throws Error(kBadInput) as load_weights does.
std::string model_fingerprint(const Path& directory, const ModelConfig& config);

}  // namespace laplace
