// See safetensors.h.
#include "model/safetensors.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <unordered_set>

#include "base/error.h"

namespace laplace {

namespace {

// In the order of TensorDtype.
constexpr std::array<at::ScalarType, 15> kScalarTypes = {
    at::kDouble, at::kFloat, at::kHalf, at::kBFloat16,      at::kLong,
    at::kInt,    at::kShort, at::kChar, at::kUInt64,        at::kUInt32,
    at::kUInt16, at::kByte,  at::kBool, at::kFloat8_e4m3fn, at::kFloat8_e5m2};

std::optional<TensorDtype> tensor_dtype(at::ScalarType type) {
  const auto* const at = std::ranges::find(kScalarTypes, type);
  if (at == kScalarTypes.end()) return std::nullopt;
  return TensorDtype(at - kScalarTypes.begin());
}

}  // namespace

at::ScalarType scalar_type(TensorDtype dtype) { return kScalarTypes.at(size_t(dtype)); }

SafetensorsFile::SafetensorsFile(const Path& path)
    : map_(std::make_shared<const MappedFile>(path)),
      header_(parse_safetensors_header(map_->bytes(), path.string())) {
  for (size_t i = 0; i < header_.tensors.size(); ++i) index_.emplace(header_.tensors[i].name, i);
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> out;
  out.reserve(header_.tensors.size());
  for (const TensorInfo& tensor : header_.tensors) out.push_back(tensor.name);
  return out;
}

const TensorInfo& SafetensorsFile::info(const std::string& name) const {
  const auto at = index_.find(name);
  if (at == index_.end()) {
    fail_input(path().string(), " has no tensor ", quoted(name), did_you_mean(name, names()));
  }
  return header_.tensors[at->second];
}

at::Tensor SafetensorsFile::tensor(const std::string& name) const {
  const TensorInfo& entry = info(name);
  const std::byte* const data = map_->bytes().data() + header_.data_start + entry.begin;
  // from_blob takes a pointer to non-const; the pages themselves refuse writes.
  auto* const address = const_cast<std::byte*>(data);
  const at::ScalarType type = scalar_type(entry.dtype);
  if (reinterpret_cast<uintptr_t>(data) % size_t(dtype_bytes(entry.dtype)) != 0) {
    const auto bytes = static_cast<int64_t>(entry.bytes());
    return at::from_blob(address, {bytes}, at::kByte).clone().view(type).view(entry.shape);
  }
  const auto keep_alive = [map = map_](void*) {};
  return at::from_blob(address, entry.shape, keep_alive, at::TensorOptions(type));
}

namespace {

// Names, shapes and byte ranges of what will be written, in order.
std::vector<TensorInfo> lay_out(const Path& path, std::span<const NamedTensor> tensors) {
  std::vector<TensorInfo> out;
  std::unordered_set<std::string_view> names;
  uint64_t at = 0;
  for (const auto& [name, tensor] : tensors) {
    if (!names.insert(name).second || name == "__metadata__") {
      fail_input("cannot write ", path.string(), ": the tensor name ", quoted(name),
                 " is reserved or given twice; rename it");
    }
    const auto dtype = tensor.defined() ? tensor_dtype(tensor.scalar_type()) : std::nullopt;
    if (!dtype) {
      fail_input("cannot write ", path.string(), ": the tensor ", quoted(name),
                 " is undefined or has a dtype that safetensors does not know; convert it first");
    }
    const uint64_t end = at + static_cast<uint64_t>(tensor.numel()) * tensor.element_size();
    out.push_back({name, *dtype, tensor.sizes().vec(), at, end});
    at = end;
  }
  return out;
}

}  // namespace

void write_safetensors(const Path& path, std::span<const NamedTensor> tensors,
                       const Metadata& metadata) {
  const std::vector<TensorInfo> layout = lay_out(path, tensors);
  AtomicFile file(path);
  file.write(make_safetensors_header(layout, metadata));
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor bytes = tensor.detach().to(at::kCPU).contiguous();
    file.write(std::span(static_cast<const std::byte*>(bytes.const_data_ptr()), bytes.nbytes()));
  }
  file.commit();
}

}  // namespace laplace
