// A model's weights as the CPU kernels read them: packed once, in parallel, and shared by all
// replicas. Constant after it is made: any number of threads may read it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/memory.h"
#include "model/config.h"
#include "serve/engine/cpu/kernels.h"
#include "serve/engine/weights.h"

namespace laplace {

// W [N,K] in panels of columns of y = x W^T.
struct PackedMatrix {
  const cpu::Gemm* gemm = nullptr;
  int64_t N = 0, K = 0;
  int64_t panels = 0, panel_bytes = 0;
  PageBuffer data;
  std::vector<float> scales;  // int8: [panels * width]
  bool swiglu = false;        // panels hold gate columns and their up columns; y has N / 2 columns
};

// Which row of W a packed column holds, -1: none (zeros).
using RowOfColumn = std::function<int64_t(int64_t column)>;

class CpuModel {
 public:
  // Reads all weights; `threads` for packing. Throws what the source throws.
  CpuModel(const ModelConfig& config, const WeightSource& source, cpu::WeightType type,
           const cpu::Kernels& kernels, int threads);

  struct Layer {
    std::vector<float> attn_norm, mlp_norm;  // [D]
    std::vector<float> conv;                 // [k,D]
    std::vector<float> aug;                  // [H,dk]
    std::vector<float> head_norm;            // [tiers,dv]
    PackedMatrix qkvg, out, gate_up, down;
  };

  const ModelConfig& config() const { return config_; }
  const cpu::Kernels& kernels() const { return kernels_; }
  cpu::WeightType type() const { return type_; }
  const Layer& layer(int64_t i) const { return layers_[size_t(i)]; }
  const std::vector<float>& norm() const { return norm_; }
  const PackedMatrix& head() const { return head_; }
  // exp(log_decay) - 1 by head, rounded once.
  float fade(int64_t head) const { return fades_[size_t(head)]; }
  // Row `id` of the embedding, [D].
  void embed(int64_t id, float* out) const;
  // Of the packed matrices and the embedding.
  int64_t weight_bytes() const;
  // Bytes of weights that one step must read at least: all but the embedding.
  int64_t step_bytes() const;
  // Floating-point operations of the products of one row, the head aside and of the head.
  double layer_flops() const;
  double head_flops() const;

 private:
  PackedMatrix pack(const std::string& name, int64_t N, int64_t K, int64_t columns,
                    const RowOfColumn& row_of) const;
  PackedMatrix pack_gate_up(const std::string& name) const;
  Layer read_layer(int64_t i) const;
  std::vector<float> read_rows(const std::string& name, int64_t rows, int64_t columns) const;
  void read_embedding();

  const ModelConfig config_;
  const WeightSource* source_;  // while constructing
  const cpu::WeightType type_;
  const cpu::Kernels& kernels_;
  const int threads_;
  std::vector<Layer> layers_;
  std::vector<float> norm_, fades_;
  PackedMatrix head_;
  bool embedding_bfloat16_ = false;
  PageBuffer embedding_;  // [V,D] in the dtype of the source
};

}  // namespace laplace
