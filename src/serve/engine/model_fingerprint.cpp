// See model_fingerprint.h.
#include "serve/engine/model_fingerprint.h"

#include "model/parameters.h"
#include "model/weight_files.h"
#include "serve/engine/tensor_hash.h"

namespace laplace {

std::string model_fingerprint(const Path& directory, const ModelConfig& config) {
  uint64_t hash = hash_text(to_line(config.to_json()), 0);
  const auto table = parameter_table(config);
  const std::vector<at::Tensor> weights = load_weights(directory, config);
  for (size_t i = 0; i < weights.size(); ++i) {
    const at::Tensor& tensor = weights[i];
    const std::span bytes(static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes());
    hash = hash_tensor(table[i].name, tensor.sizes(), c10::toString(tensor.scalar_type()), bytes,
                       hash);
  }
  return hash_digits(hash);
}

}  // namespace laplace
