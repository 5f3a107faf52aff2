// Tensors in a safetensors file: opened as views over a memory map, written atomically.
//
// Everything a file states about itself is checked when it is opened (safetensors_header.h), so
// reading a tensor cannot reach outside the map. Should another process cut the file short while it
// is mapped, the access ends this process with SIGBUS; our own writers replace files by renaming
// and never do that.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/files.h"
#include "model/safetensors_header.h"

namespace laplace {

using NamedTensor = std::pair<std::string, at::Tensor>;

at::ScalarType scalar_type(TensorDtype dtype);

// An open file. Movable; const members may be called from several threads at once.
class SafetensorsFile {
 public:
  // Maps and checks the file; throws Error(kBadInput) as parse_safetensors_header does.
  explicit SafetensorsFile(const Path& path);

  const Path& path() const { return map_->path(); }
  // All tensors in the order of their data.
  const std::vector<TensorInfo>& tensors() const { return header_.tensors; }
  std::vector<std::string> names() const;
  bool contains(const std::string& name) const { return index_.contains(name); }
  // Throws Error(kBadInput) naming the nearest tensor when there is none of that name.
  const TensorInfo& info(const std::string& name) const;

  // The tensor as a contiguous view over the map. READ ONLY: the pages are mapped without write
  // access, so clone it before any in-place operation. The view keeps the map alive after this
  // object is gone. Data that is not aligned for its dtype is copied instead. Throws as info()
  // does.
  at::Tensor tensor(const std::string& name) const;

  const Metadata& metadata() const { return header_.metadata; }

 private:
  std::shared_ptr<const MappedFile> map_;
  SafetensorsHeader header_;
  std::unordered_map<std::string, size_t> index_;  // name -> position in header_.tensors
};

// Writes `tensors` in the given order, so that the file appears under `path` only when it is
// complete and synced. Tensors of any device and stride are brought to contiguous CPU memory one at
// a time. Throws Error(kBadInput) for a name given twice, an undefined tensor or a dtype outside
// the format, Error(kFailure) when the disk refuses.
void write_safetensors(const Path& path, std::span<const NamedTensor> tensors,
                       const Metadata& metadata = {});

}  // namespace laplace
