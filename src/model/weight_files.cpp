// See weight_files.h.
#include "model/weight_files.h"

#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "model/parameters.h"

namespace laplace {

namespace {

constexpr const char* kWeights = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

// [2, 3]
std::string shape_text(const std::vector<int64_t>& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += cat(i == 0 ? "" : ", ", shape[i]);
  return out + "]";
}

// A name that stays inside its directory.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

// The index's weight_map: tensor -> file.
std::map<std::string, std::string> read_weight_map(const Path& index) {
  const Json json = load_json(index, {.max_bytes = 16 << 20});
  JsonFields fields(json, index.string());
  fields.ignore("metadata");
  const Json& entries = fields.any("weight_map");
  fields.finish();
  if (!entries.is_object()) {
    fail_input(index.string(), " lacks the object \"weight_map\"; write the index again");
  }
  std::map<std::string, std::string> out;
  for (const auto& [tensor, file] : entries.items()) {
    if (!file.is_string() || !is_plain_name(file.get_ref<const std::string&>())) {
      fail_input(index.string(), ": the file of the tensor ", quoted(tensor), " is ",
                 quoted(to_line(file)), ", but must be the plain name of a file beside the index");
    }
    out.emplace(tensor, file.get<std::string>());
  }
  return out;
}

}  // namespace

WeightFiles::WeightFiles(const Path& path) : path_(path) {
  if (!std::filesystem::is_directory(path)) {
    add(SafetensorsFile(path));
  } else if (std::filesystem::exists(path / kWeights)) {
    add(SafetensorsFile(path / kWeights));
  } else if (std::filesystem::exists(path / kIndex)) {
    open_shards(path / kIndex);
  } else {
    fail_input(path.string(), " has neither ", kWeights, " nor ", kIndex,
               "; name a model directory");
  }
}

void WeightFiles::open_shards(const Path& index) {
  const auto weight_map = read_weight_map(index);
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : weight_map) shards.insert(shard);
  for (const std::string& shard : shards) add(SafetensorsFile(index.parent_path() / shard));
  for (const auto& [tensor, shard] : weight_map) {
    const auto at = file_of_.find(tensor);
    if (at == file_of_.end() || files_[at->second].path().filename() != shard) {
      fail_input(index.string(), " places the tensor ", quoted(tensor), " in ", quoted(shard),
                 ", which does not hold it; write index and shards again");
    }
  }
  for (const auto& [tensor, position] : file_of_) {
    if (!weight_map.contains(tensor)) {
      fail_input(index.string(), " does not list the tensor ", quoted(tensor), " of ",
                 files_[position].path().filename().string(), "; write index and shards again");
    }
  }
}

void WeightFiles::add(SafetensorsFile file) {
  for (const TensorInfo& tensor : file.tensors()) {
    if (!file_of_.emplace(tensor.name, files_.size()).second) {
      fail_input(file.path().string(), " holds the tensor ", quoted(tensor.name),
                 ", which another shard holds too; write the shards again");
    }
  }
  files_.push_back(std::move(file));
}

std::vector<std::string> WeightFiles::names() const {
  std::vector<std::string> out;
  for (const SafetensorsFile& file : files_) {
    for (const TensorInfo& tensor : file.tensors()) out.push_back(tensor.name);
  }
  return out;
}

const SafetensorsFile& WeightFiles::holder(const std::string& name) const {
  const auto at = file_of_.find(name);
  if (at == file_of_.end()) {
    fail_input(path_.string(), " has no tensor ", quoted(name), did_you_mean(name, names()));
  }
  return files_[at->second];
}

const TensorInfo& WeightFiles::info(const std::string& name) const {
  return holder(name).info(name);
}

at::Tensor WeightFiles::tensor(const std::string& name) const { return holder(name).tensor(name); }

std::vector<at::Tensor> load_weights(const Path& directory, const ModelConfig& config) {
  const WeightFiles weights(directory);
  std::vector<at::Tensor> out;
  std::set<std::string> expected;
  for (const ParameterSpec& spec : parameter_table(config)) {
    expected.insert(spec.name);
    if (!weights.contains(spec.name)) {
      fail_input("the weights in ", directory.string(), " lack the tensor ", quoted(spec.name),
                 ", which config.json asks for; take weights and config.json of one model");
    }
    const TensorInfo& info = weights.info(spec.name);
    if (info.shape != spec.shape) {
      fail_input("the tensor ", quoted(spec.name), " in ", directory.string(), " has the shape ",
                 shape_text(info.shape), ", but config.json asks for ", shape_text(spec.shape),
                 "; take weights and config.json of one model");
    }
    if (info.dtype != TensorDtype::kF32 && info.dtype != TensorDtype::kBF16) {
      fail_input("the tensor ", quoted(spec.name), " in ", directory.string(), " has the dtype ",
                 dtype_name(info.dtype), "; convert it to F32 or BF16");
    }
    out.push_back(weights.tensor(spec.name));
  }
  for (const std::string& name : weights.names()) {
    if (!expected.contains(name)) {
      fail_input("the weights in ", directory.string(), " hold the tensor ", quoted(name),
                 ", which the model of config.json does not have; take weights and config.json of "
                 "one model");
    }
  }
  return out;
}

}  // namespace laplace
