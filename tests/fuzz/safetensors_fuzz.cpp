// libFuzzer entry: any bytes as a safetensors file are refused as bad input, or their tensors lie
// end to end inside the file with the sizes of their shapes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "base/error.h"
#include "model/safetensors_header.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto header =
        laplace::parse_safetensors_header(std::as_bytes(std::span(data, size)), "f");
    uint64_t at = 0;
    for (const laplace::TensorInfo& tensor : header.tensors) {
      auto bytes = uint64_t(laplace::dtype_bytes(tensor.dtype));
      for (const int64_t dimension : tensor.shape) bytes *= static_cast<uint64_t>(dimension);
      if (tensor.begin != at || tensor.bytes() != bytes) std::abort();
      at = tensor.end;
    }
    if (header.data_start + at != size) std::abort();
  } catch (const laplace::Error& error) {
    if (error.kind() != laplace::ErrorKind::kBadInput) std::abort();
  }
  return 0;
}
