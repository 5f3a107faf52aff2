// See cpu_model.h.
#include "serve/engine/cpu/cpu_model.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/strings.h"
#include "base/threads.h"

namespace laplace {

CpuModel::CpuModel(const ModelConfig& config, const WeightSource& source, cpu::WeightType type,
                   const cpu::Kernels& kernels, int threads)
    : config_(config), source_(&source), type_(type), kernels_(kernels), threads_(threads) {
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) layers_.push_back(read_layer(i));
  norm_ = read_rows("norm.weight", 1, config_.hidden_size);
  const int64_t V = config_.vocab_size;
  head_ = pack("head.weight", V, config_.hidden_size, V, [](int64_t column) { return column; });
  for (const float log_decay : config_.log_decays()) {
    fades_.push_back(float(std::expm1(double(log_decay))));
  }
  read_embedding();
  source_ = nullptr;
}

std::vector<float> CpuModel::read_rows(const std::string& name, int64_t rows,
                                       int64_t columns) const {
  std::vector<float> out(size_t(rows * columns));
  for (int64_t r = 0; r < rows; ++r) source_->read(name, r, out.data() + r * columns);
  return out;
}

CpuModel::Layer CpuModel::read_layer(int64_t i) const {
  const ModelConfig& c = config_;
  const auto name = [i](const char* rest) { return cat("layers.", i, ".", rest); };
  const auto same = [](int64_t column) { return column; };
  Layer layer;
  layer.attn_norm = read_rows(name("attn_norm.weight"), 1, c.hidden_size);
  layer.mlp_norm = read_rows(name("mlp_norm.weight"), 1, c.hidden_size);
  layer.aug = read_rows(name("aug_balance"), c.num_heads, c.head_k_dim);
  layer.head_norm = read_rows(name("head_norm.weight"), c.num_norm_tiers, c.head_v_dim);
  const auto conv = read_rows(name("conv.weight"), c.hidden_size, c.conv_kernel);
  layer.conv.resize(conv.size());
  for (int64_t d = 0; d < c.hidden_size; ++d) {
    for (int64_t j = 0; j < c.conv_kernel; ++j) {
      layer.conv[size_t(j * c.hidden_size + d)] = conv[size_t(d * c.conv_kernel + j)];
    }
  }
  const int64_t D = c.hidden_size, rows = c.qkvg_rows();
  layer.qkvg = pack(name("qkvg.weight"), rows, D, rows, same);
  layer.out = pack(name("out.weight"), D, c.value_width(), D, same);
  layer.gate_up = pack_gate_up(name("gate_up.weight"));
  layer.down = pack(name("down.weight"), D, c.intermediate_size, D, same);
  return layer;
}

// A panel's first half are gate columns, its second half the up columns of the same outputs.
PackedMatrix CpuModel::pack_gate_up(const std::string& name) const {
  const int64_t F = config_.intermediate_size;
  const int64_t width = kernels_.gemm[size_t(type_)].width, half = width / 2;
  const auto row_of = [=](int64_t column) -> int64_t {
    const int64_t within = column % width, out = column / width * half + within % half;
    if (out >= F) return -1;
    return within < half ? out : F + out;
  };
  const int64_t columns = (F + half - 1) / half * width;
  PackedMatrix matrix = pack(name, 2 * F, config_.hidden_size, columns, row_of);
  matrix.swiglu = true;
  return matrix;
}

PackedMatrix CpuModel::pack(const std::string& name, int64_t N, int64_t K, int64_t columns,
                            const RowOfColumn& row_of) const {
  const cpu::Gemm& gemm = kernels_.gemm[size_t(type_)];
  PackedMatrix out;
  out.gemm = &gemm;
  out.N = N;
  out.K = K;
  out.panels = (columns + gemm.width - 1) / gemm.width;
  out.panel_bytes = gemm.panel_bytes(K);
  out.data = PageBuffer(size_t(out.panels * out.panel_bytes));
  out.scales.resize(size_t(out.panels * gemm.width));
  parallel_for(out.panels, threads_, [&](int64_t panel) {
    std::vector<float> values(size_t(gemm.width * K));
    std::vector<const float*> rows;
    for (int64_t c = 0; c < gemm.width; ++c) {
      const int64_t column = panel * gemm.width + c;
      const int64_t row = column < columns ? row_of(column) : -1;
      rows.push_back(row < 0 ? nullptr : values.data() + c * K);
      if (row >= 0) source_->read(name, row, values.data() + c * K);
    }
    gemm.pack(rows.data(), K, out.data.data() + panel * out.panel_bytes,
              out.scales.data() + panel * gemm.width);
  });
  return out;
}

void CpuModel::read_embedding() {
  const int64_t V = config_.vocab_size, D = config_.hidden_size;
  const std::string name = "embed.weight";
  embedding_bfloat16_ = source_->is_bfloat16(name);
  embedding_ = PageBuffer(size_t(V * D) * (embedding_bfloat16_ ? 2 : 4));
  parallel_for(V, threads_, [&](int64_t id) {
    if (!embedding_bfloat16_) return source_->read(name, id, embedding_.as<float>() + id * D);
    std::vector<float> row(static_cast<size_t>(D));
    source_->read(name, id, row.data());
    uint16_t* const out = embedding_.as<uint16_t>() + id * D;
    for (int64_t j = 0; j < D; ++j) {
      out[j] = uint16_t(std::bit_cast<uint32_t>(row[size_t(j)]) >> 16);
    }
  });
}

void CpuModel::embed(int64_t id, float* out) const {
  const int64_t D = config_.hidden_size;
  if (!embedding_bfloat16_) {
    std::copy_n(embedding_.as<float>() + id * D, D, out);
    return;
  }
  const uint16_t* const row = embedding_.as<uint16_t>() + id * D;
  for (int64_t j = 0; j < D; ++j) out[j] = std::bit_cast<float>(uint32_t{row[j]} << 16);
}

int64_t CpuModel::step_bytes() const {
  auto bytes = int64_t(head_.data.size());
  for (const Layer& layer : layers_) {
    bytes += int64_t(layer.qkvg.data.size() + layer.out.data.size() + layer.gate_up.data.size() +
                     layer.down.data.size());
  }
  return bytes;
}

int64_t CpuModel::weight_bytes() const { return step_bytes() + int64_t(embedding_.size()); }

double CpuModel::layer_flops() const { return 2.0 * double(config_.muon_parameters()); }

double CpuModel::head_flops() const {
  return 2.0 * double(config_.vocab_size) * double(config_.hidden_size);
}

}  // namespace laplace
