// Steps on any device of LibTorch, with the portable operators.
//
// Every call of the model has one of a few fixed widths (1, 2, 4, ... slots), because a device may
// compile each shape it has not seen; all of them are run once at the start. Rows that are not
// taken point to a slot of their own, the dummy, and nobody reads what becomes of it. Prompts are
// fed token by token, as decoding does, so that a sequence's bits do not depend on how its prompt
// was cut. They may depend on the width: that is up to the device's matrix product.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "model/compute_dtype.h"
#include "model/decoder.h"
#include "serve/engine/executor.h"
#include "serve/engine/open_engine.h"

namespace laplace {

namespace {

constexpr int64_t kDefaultSlots = 32;  // a device's free memory is not known here

class TorchExecutor : public Executor {
 public:
  TorchExecutor(Decoder decoder, int64_t slots)
      : decoder_(std::move(decoder)), slots_(slots), state_(decoder_.zero_state(slots + 1)) {
    for (int64_t width = 1; width < slots; width *= 2) widths_.push_back(width);
    widths_.push_back(slots);
    const c10::InferenceMode guard;
    std::vector<int64_t> dummy;
    for (const int64_t width : widths_) {
      dummy.assign(size_t(width), slots_);
      (void)feed(std::vector<int64_t>(size_t(width), 0), dummy);
    }
  }

  const ModelConfig& config() const override { return decoder_.config(); }
  int64_t slots() const override { return slots_; }
  int64_t bytes_per_sequence() const override { return config().state_bytes(); }
  std::string description() const override {
    const bool bfloat16 = decoder_.compute_dtype() == at::kBFloat16;
    return cat(bfloat16 ? "bfloat16" : "float32", " on ", decoder_.device().str());
  }

  // The first tokens of all segments, then the second ones, and so on.
  void step(std::span<const Segment> segments, std::span<const int64_t> logit_rows,
            float* logits) override {
    const c10::InferenceMode guard;
    std::vector<int64_t> first_row;
    size_t longest = 0;
    int64_t rows = 0;
    for (const Segment& segment : segments) {
      first_row.push_back(rows);
      rows += int64_t(segment.tokens.size());
      longest = std::max(longest, segment.tokens.size());
    }
    for (size_t t = 0; t < longest; ++t) {
      std::vector<int64_t> tokens, slots, row_of;
      for (size_t s = 0; s < segments.size(); ++s) {
        if (t >= segments[s].tokens.size()) continue;
        tokens.push_back(segments[s].tokens[t]);
        slots.push_back(segments[s].slot);
        row_of.push_back(first_row[s] + int64_t(t));
      }
      const auto width = *std::ranges::lower_bound(widths_, int64_t(tokens.size()));
      tokens.resize(size_t(width), 0);
      slots.resize(size_t(width), slots_);
      const at::Tensor got = feed(tokens, slots).to(at::kCPU, at::kFloat).contiguous();
      for (size_t i = 0; i < row_of.size(); ++i) {
        const auto place = std::ranges::lower_bound(logit_rows, row_of[i]);
        if (place == logit_rows.end() || *place != row_of[i]) continue;
        std::copy_n(got.const_data_ptr<float>() + int64_t(i) * config().vocab_size,
                    config().vocab_size,
                    logits + (place - logit_rows.begin()) * config().vocab_size);
      }
    }
  }

  void zero(int64_t slot) override {
    const c10::InferenceMode guard;
    for (LayerState& layer : state_) {
      layer.S.select(0, slot).zero_();
      layer.window.select(0, slot).zero_();
    }
  }

  void save(int64_t slot, std::span<float> state) override {
    float* out = state.data();
    for_each_part(slot, [&](const at::Tensor& part) {
      host_view(out, part).copy_(part);
      out += part.numel();
    });
  }

  void load(int64_t slot, std::span<const float> state) override {
    // from_blob takes a pointer to non-const; it is only read.
    auto* from = const_cast<float*>(state.data());
    for_each_part(slot, [&](const at::Tensor& part) {
      part.copy_(host_view(from, part));
      from += part.numel();
    });
  }

  void release(int64_t) override {}

  void parallel(int64_t count, const std::function<void(int64_t)>& body) override {
    for (int64_t i = 0; i < count; ++i) body(i);
  }

 private:
  static at::Tensor host_view(float* data, const at::Tensor& like) {
    return at::from_blob(data, like.sizes(), at::kFloat);
  }

  template <class Body>
  void for_each_part(int64_t slot, const Body& body) {
    const c10::InferenceMode guard;
    for (LayerState& layer : state_) {
      body(layer.window.select(0, slot));
      body(layer.S.select(0, slot));
    }
  }

  at::Tensor index_of(const std::vector<int64_t>& values) const {
    const at::Tensor out = at::empty({int64_t(values.size())}, at::kLong);
    std::ranges::copy(values, out.mutable_data_ptr<int64_t>());
    return out.to(decoder_.device());
  }

  // One token for each of `slots`: logits [width,V].
  at::Tensor feed(const std::vector<int64_t>& tokens, const std::vector<int64_t>& slots) {
    const at::Tensor index = index_of(slots);
    ModelState batch;
    for (const LayerState& layer : state_) {
      batch.push_back({layer.S.index_select(0, index), layer.window.index_select(0, index)});
    }
    at::Tensor logits = decoder_.step(index_of(tokens), batch);
    for (size_t i = 0; i < state_.size(); ++i) {
      state_[i].S.index_copy_(0, index, batch[i].S);
      state_[i].window.index_copy_(0, index, batch[i].window);
    }
    return logits;
  }

  const Decoder decoder_;
  const int64_t slots_;
  std::vector<int64_t> widths_;
  ModelState state_;  // [slots + 1, ...], the last slot is the dummy
};

at::ScalarType compute_dtype(const EngineOptions& options, c10::Device device) {
  if (options.dtype == EngineDtype::kInt8 || options.dtype == EngineDtype::kInt4) {
    fail_input(engine_dtype_name(options.dtype),
               " is for --device cpu; take bfloat16 or float32 on ", options.device);
  }
  return parse_compute_dtype(engine_dtype_name(options.dtype), device);
}

}  // namespace

std::unique_ptr<Engine> open_torch_engine(const Path& directory, EngineModel model,
                                          const EngineOptions& options) {
  // "torch:cpu" computes on the host as any other device would: to compare, and for tests.
  const std::string prefix = "torch:";
  const bool prefixed = options.device.starts_with(prefix);
  const c10::Device device =
      open_device(prefixed ? options.device.substr(prefix.size()) : options.device);
  if (options.threads > 0) at::set_num_threads(options.threads);
  const at::ScalarType dtype = compute_dtype(options, device);
  const int64_t slots = options.slots > 0 ? options.slots : kDefaultSlots * options.replicas;
  std::vector<std::unique_ptr<Executor>> executors;
  for (int r = 0; r < options.replicas; ++r) {
    executors.push_back(std::make_unique<TorchExecutor>(
        Decoder::open(directory, model.config, dtype, device), slots / options.replicas));
  }
  if (!options.quiet) log_info(slots, " sequences at a time, ", executors.front()->description());
  return std::make_unique<Engine>(std::move(model), std::move(executors), options);
}

}  // namespace laplace
