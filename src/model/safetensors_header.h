// The header of a safetensors file: names, dtypes, shapes and byte ranges, checked before any use.
//
// A file is: u64 little-endian n, n bytes of JSON, data. The JSON is an object of
//   "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}
// with offsets in bytes from the start of the data, and "__metadata__": {string: string}.
// Source: https://github.com/huggingface/safetensors (README, "Format").
// All functions are pure and may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace laplace {

// Pairs of strings that a file carries about itself.
using Metadata = std::map<std::string, std::string>;

// The numbers that the format knows. kF8E4M3 is the one without infinities.
enum class TensorDtype : uint8_t {
  kF64,
  kF32,
  kF16,
  kBF16,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool,
  kF8E4M3,
  kF8E5M2
};

// "F32", "BF16", ..., as the format spells it.
std::string_view dtype_name(TensorDtype dtype);
// Bytes of one number.
int64_t dtype_bytes(TensorDtype dtype);

struct TensorInfo {
  std::string name;
  TensorDtype dtype = TensorDtype::kF32;
  std::vector<int64_t> shape;
  // Bytes from the start of the data; end - begin = numel x size of the dtype.
  uint64_t begin = 0;
  uint64_t end = 0;

  uint64_t bytes() const { return end - begin; }
};

struct SafetensorsHeader {
  // In the order of their data: contiguous, without holes or overlaps, ending with the file.
  std::vector<TensorInfo> tensors;
  Metadata metadata;
  // Where the data starts in the file.
  uint64_t data_start = 0;
};

// Bounds of what is accepted; real models stay far below.
inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;
inline constexpr size_t kMaxTensorDimensions = 16;

// Parses and checks the header of `file`, which is the whole file. `source` names it in errors.
// Throws Error(kBadInput) for: a header longer than the file or 100 MB, JSON that is not the
// format's, a dtype that is not known, more than 16 dimensions, sizes that overflow, a byte range
// that is not shape x dtype, holes, overlaps, data beyond the file or bytes behind the last tensor,
// a name twice.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file,
                                           const std::string& source);

// The bytes before the data: length and JSON, padded with spaces so that the data starts at a
// multiple of eight. Offsets are taken from `tensors`.
std::string make_safetensors_header(std::span<const TensorInfo> tensors, const Metadata& metadata);

}  // namespace laplace
