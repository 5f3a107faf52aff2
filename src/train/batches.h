// Batches of the loader as tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include "data/loader.h"

namespace laplace {

struct BatchTensors {
  at::Tensor tokens;     // [B,T+1] int64
  at::Tensor doc_start;  // [B,T] uint8, on the host
};

inline BatchTensors to_tensors(Batch& batch, c10::Device device) {
  const at::Tensor tokens =
      at::from_blob(batch.tokens.data(), {batch.rows, batch.length + 1}, at::kInt);
  const at::Tensor starts =
      at::from_blob(batch.doc_start.data(), {batch.rows, batch.length}, at::kByte);
  return {tokens.to(device, at::kLong), starts.clone()};
}

}  // namespace laplace
