// See validation.h.
#include "train/validation.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mul.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "train/batches.h"

namespace laplace {

namespace {

// Sum of -log p over the valid targets of a batch.
double sum_of_losses(const Decoder& model, Batch& batch, ModelState* state) {
  const auto [tokens, doc_start] = to_tensors(batch, model.device());
  const at::Tensor hidden = model.hidden(tokens.slice(1, 0, batch.length), doc_start, state);
  const at::Tensor log_p =
      ops::linear_log_prob(hidden, model.weights().back(), tokens.slice(1, 1).reshape({-1}));
  const at::Tensor valid = at::from_blob(batch.valid.data(), {batch.rows, 1}, at::kInt);
  const at::Tensor counts = at::arange(batch.length).unsqueeze(0).lt(valid).reshape({-1});
  return -at::mul(log_p.to(at::kCPU, at::kDouble), counts).sum().item<double>();
}

// One row of `batch` out of window `window` of the split.
void append_row(const SequentialLoader& loader, int64_t window, Batch& one, Batch& batch) {
  loader.fill(window, 1, one);
  batch.tokens.insert(batch.tokens.end(), one.tokens.begin(), one.tokens.end());
  batch.doc_start.insert(batch.doc_start.end(), one.doc_start.begin(), one.doc_start.end());
  batch.valid.push_back(one.valid[0]);
  batch.length = one.length;
  ++batch.rows;
}

}  // namespace

ValidationResult validate(const Decoder& model, const SequentialLoader& loader,
                          const ValidationOptions& options) {
  const c10::NoGradGuard no_grad;
  int64_t windows = loader.windows();
  if (options.max_tokens > 0) {
    const int64_t wanted = (options.max_tokens + loader.length() - 1) / loader.length();
    windows = std::min(windows, std::max<int64_t>(wanted, 1));
  }
  const int64_t rows = std::min(options.rows, windows);
  const int64_t columns = (windows + rows - 1) / rows;  // windows of a row, one after another
  ValidationResult result;
  double sum = 0;
  ModelState state;
  if (options.carry) state = model.zero_state(rows);
  Batch batch, one;
  for (int64_t column = 0; column < columns; ++column) {
    batch = {};
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t window = row * columns + column;
      append_row(loader, window, one, batch);
      if (window >= windows) batch.valid.back() = 0;
    }
    for (const int32_t valid : batch.valid) result.tokens += valid;
    sum += sum_of_losses(model, batch, options.carry ? &state : nullptr);
  }
  if (result.tokens == 0) return result;
  result.loss = sum / double(result.tokens);
  // A part of the split has its share of the bytes.
  const double bytes = double(loader.text_bytes()) * double(result.tokens) /
                       double(std::max<int64_t>(loader.tokens() - 1, 1));
  if (bytes > 0) result.bits_per_byte = sum / std::log(2.0) / bytes;
  return result;
}

}  // namespace laplace
