// The weights of a model directory as one: model.safetensors, or the shards that
// model.safetensors.index.json lists ({"metadata": {...}, "weight_map": {tensor: file}}, as
// Hugging Face writes it).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "model/config.h"
#include "model/safetensors.h"

namespace laplace {

// Open files. Movable; const members may be called from several threads at once.
class WeightFiles {
 public:
  // `path`: a model directory or one .safetensors file. Throws Error(kBadInput) when there are no
  // weights, for damaged files, an index whose files are not plain names in the same directory, and
  // an index and shards that do not list the same tensors.
  explicit WeightFiles(const Path& path);

  // The directory or file that was opened.
  const Path& path() const { return path_; }
  const std::vector<SafetensorsFile>& files() const { return files_; }
  // File by file, in the order of the data.
  std::vector<std::string> names() const;
  bool contains(const std::string& name) const { return file_of_.contains(name); }
  const TensorInfo& info(const std::string& name) const;
  // A read-only view, see SafetensorsFile::tensor.
  at::Tensor tensor(const std::string& name) const;

 private:
  void open_shards(const Path& index);
  void add(SafetensorsFile file);
  const SafetensorsFile& holder(const std::string& name) const;

  Path path_;
  std::vector<SafetensorsFile> files_;
  std::unordered_map<std::string, size_t> file_of_;  // tensor -> position in files_
};

// All parameters of the model in `directory`, in the order of parameter_table(config): read-only
// views, float32 or bfloat16 as stored. Throws Error(kBadInput) in one sentence for a tensor that
// is missing, unknown to the architecture, or of another shape or dtype.
std::vector<at::Tensor> load_weights(const Path& directory, const ModelConfig& config);

}  // namespace laplace
