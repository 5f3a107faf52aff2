// Weights of a model directory for the executors that know no tensors: see weights.h. The one file
// of the engine's CPU path that sees LibTorch.
#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_map>

#include "base/error.h"
#include "model/parameters.h"
#include "model/weight_files.h"
#include "serve/engine/weights.h"

namespace laplace {

namespace {

class FileWeights : public WeightSource {
 public:
  FileWeights(const Path& directory, const ModelConfig& config)
      : tensors_(load_weights(directory, config)) {
    const auto table = parameter_table(config);
    for (size_t i = 0; i < table.size(); ++i) {
      const bool vector = table[i].shape.size() == 1;
      index_[table[i].name] = {tensors_[i].const_data_ptr(),
                               tensors_[i].scalar_type() == at::kBFloat16,
                               vector ? table[i].numel() : table[i].row_size()};
    }
  }

  void read(const std::string& name, int64_t row, float* out) const override {
    const Entry& entry = find(name);
    if (!entry.bfloat16) {
      const auto* const from = static_cast<const float*>(entry.data) + row * entry.row_size;
      std::copy_n(from, entry.row_size, out);
      return;
    }
    const auto* const from = static_cast<const uint16_t*>(entry.data) + row * entry.row_size;
    for (int64_t i = 0; i < entry.row_size; ++i) {
      out[i] = std::bit_cast<float>(uint32_t{from[i]} << 16);
    }
  }

  bool is_bfloat16(const std::string& name) const override { return find(name).bfloat16; }

 private:
  struct Entry {
    const void* data = nullptr;
    bool bfloat16 = false;
    int64_t row_size = 0;
  };

  const Entry& find(const std::string& name) const {
    const auto at = index_.find(name);
    if (at == index_.end()) fail("there is no weight ", name);
    return at->second;
  }

  std::vector<at::Tensor> tensors_;  // views that keep the map alive
  std::unordered_map<std::string, Entry> index_;
};

}  // namespace

std::unique_ptr<WeightSource> open_weights(const Path& directory, const ModelConfig& config) {
  return std::make_unique<FileWeights>(directory, config);
}

}  // namespace laplace
