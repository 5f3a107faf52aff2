// Steps on the CPU: packed weights, fused kernels, any number of rows.
//
// A layer is a handful of passes over the threads: norm, convolution, product, recurrence by
// (sequence, head), product, norm, product with the gated unit, product. Prompts run through the
// same recurrence token by token; only their products are done for many tokens at once, and those
// treat every row by itself.
#pragma once

#include <memory>
#include <vector>

#include "serve/engine/cpu/cpu_model.h"
#include "serve/engine/cpu/thread_pool.h"
#include "serve/engine/executor.h"
#include "serve/engine/state_pool.h"

namespace laplace {

class CpuExecutor : public Executor {
 public:
  // `cores`: as of ThreadPool.
  CpuExecutor(std::shared_ptr<const CpuModel> model, int64_t slots, int threads, bool poison,
              std::vector<int> cores = {});

  const ModelConfig& config() const override { return model_->config(); }
  int64_t slots() const override { return pool_.slots(); }
  int64_t bytes_per_sequence() const override { return sequence_bytes(config()); }
  std::string description() const override;
  void step(std::span<const Segment> segments, std::span<const int64_t> logit_rows,
            float* logits) override;
  void zero(int64_t slot) override { pool_.zero(slot); }
  void save(int64_t slot, std::span<float> state) override;
  void load(int64_t slot, std::span<const float> state) override;
  void release(int64_t slot) override { pool_.release(slot); }
  void parallel(int64_t count, const std::function<void(int64_t)>& body) override;
  void own_thread() override { threads_.pin_caller(); }
  void steps(bool busy) override { busy ? threads_.begin() : threads_.end(); }

  // The state, a row of logits, and the counts of its ids.
  static int64_t sequence_bytes(const ModelConfig& config);
  // Buffers that do not depend on the number of slots.
  static int64_t workspace_bytes(const ModelConfig& config);

 private:
  // Rows of x and what becomes of them: [rows][stride] floats, strides padded so that rows do not
  // fall onto the same cache sets.
  struct Buffer {
    PageBuffer memory;
    int64_t stride = 0;  // floats
    float* row(int64_t r) { return memory.as<float>() + r * stride; }
  };
  // Successive rows of one sequence in a pass.
  struct Part {
    int64_t slot, first, count;
  };

  static Buffer make_buffer(int64_t columns);
  void warm();
  void pass(std::span<const Part> parts, int64_t rows);
  void run_layer(int64_t i, std::span<const Part> parts, int64_t rows);
  void convolve(int64_t i, std::span<const Part> parts, int64_t rows);
  void mix(int64_t i, std::span<const Part> parts);
  void shift_window(int64_t layer, const Part& part);
  void norm_rows(const std::vector<float>& weight, int64_t rows, const PackedMatrix& next);
  // Brings row r of `from` into the form the product reads.
  void prepare_row(const PackedMatrix& matrix, Buffer& from, int64_t r);
  void prepare(const PackedMatrix& matrix, Buffer& from, int64_t rows);
  void multiply(const PackedMatrix& matrix, Buffer& from, int64_t rows, cpu::Epilogue epilogue,
                float* out, int64_t out_stride, int64_t columns);
  void head(std::span<const int64_t> rows, float* logits);
  int64_t grain(int64_t count) const;

  std::shared_ptr<const CpuModel> model_;
  const cpu::Kernels& kernels_;
  StatePool pool_;
  ThreadPool threads_;
  std::vector<TokenId> tokens_;   // of the pass
  std::vector<int64_t> part_of_;  // row -> index into parts
  Buffer x_, h_, c_, qkvg_, z_, f_;
  Buffer act_;  // prepared rows
  std::vector<float> act_scales_;
  std::vector<PageBuffer> scratch_;  // one a thread
};

}  // namespace laplace
