// See score.h.
#include "eval/score.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"

namespace laplace {

namespace {

void check_ids(const ModelConfig& config, std::span<const int32_t> ids) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < config.vocab_size) continue;
    fail_input("the token id ", ids[i], " at place ", i + 1,
               " is outside the model's vocabulary; ids run from 0 to ", config.vocab_size - 1);
  }
}

// [n] int64 on the decoder's device.
at::Tensor tensor_of(std::span<const int32_t> ids, const Decoder& decoder) {
  const at::Tensor tokens = at::empty({int64_t(ids.size())}, at::kLong);
  std::ranges::copy(ids, tokens.mutable_data_ptr<int64_t>());
  return tokens.to(decoder.device());
}

// tokens [n] -> hidden states [n,D]; `state` goes on.
at::Tensor hidden_of(const Decoder& decoder, const at::Tensor& tokens, ModelState& state,
                     Form form) {
  const at::Tensor row = tokens.unsqueeze(0);  // [1,n]
  if (form == Form::kChunked) return decoder.hidden(row, {}, &state, form);
  std::vector<at::Tensor> steps;
  for (int64_t i = 0; i < row.size(1); ++i) {
    steps.push_back(decoder.hidden(row.slice(1, i, i + 1), {}, &state, form));
  }
  return at::cat(steps);
}

}  // namespace

std::vector<double> log_probs(const Decoder& decoder, std::span<const int32_t> ids, Form form,
                              const std::function<bool(int64_t)>& progress) {
  check_ids(decoder.config(), ids);
  std::vector<double> out;
  if (ids.size() < 2) return out;
  const c10::InferenceMode guard;
  const int64_t chunk = decoder.config().chunk_size;
  // Pieces end where chunks do.
  const auto piece = size_t(std::max<int64_t>(kScorePiece / chunk, 1) * chunk);
  const at::Tensor& head = decoder.weights().back();
  ModelState state = decoder.zero_state(1);
  for (size_t first = 0; first + 1 < ids.size(); first += piece) {
    const size_t count = std::min(piece, ids.size() - 1 - first);
    const at::Tensor hidden =
        hidden_of(decoder, tensor_of(ids.subspan(first, count), decoder), state, form);
    const at::Tensor scores =
        ops::linear_log_prob(hidden, head, tensor_of(ids.subspan(first + 1, count), decoder))
            .to(at::kCPU, at::kDouble)
            .contiguous();
    const auto* const values = scores.const_data_ptr<double>();
    out.insert(out.end(), values, values + count);
    if (progress && !progress(int64_t(first + count))) break;
  }
  return out;
}

Form parse_form(std::string_view name) {
  if (name == "chunked") return Form::kChunked;
  if (name == "recurrent") return Form::kRecurrent;
  fail_input("the form is ", quoted(name), ", but must be chunked or recurrent");
}

double bits_per_byte(double sum_of_log_probs, int64_t bytes) {
  return -sum_of_log_probs / std::numbers::ln2 / double(bytes);
}

}  // namespace laplace
