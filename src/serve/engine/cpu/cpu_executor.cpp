// See cpu_executor.h.
#include "serve/engine/cpu/cpu_executor.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace laplace {

namespace {

// Rows of one pass through the layers; a step of more rows takes several.
constexpr int64_t kPassRows = 512;
constexpr int64_t kWarmBytes = 64 << 20;  // of slots, touched before the first step
constexpr int64_t kMaxTaps = 64;          // ModelConfig's bound of conv_kernel

int64_t padded(int64_t columns) { return (columns + 15) / 16 * 16 + 16; }

// Pages that have been touched, so that the first steps do not wait for the system to zero them.
PageBuffer touched(size_t bytes) {
  PageBuffer out(bytes);
  std::memset(out.data(), 0, bytes);
  return out;
}

int64_t widest(const ModelConfig& c) {
  return std::max({c.hidden_size, c.value_width(), c.intermediate_size});
}

}  // namespace

int64_t CpuExecutor::sequence_bytes(const ModelConfig& config) {
  return config.state_bytes() + config.vocab_size * int64_t{4 + 9};
}

int64_t CpuExecutor::workspace_bytes(const ModelConfig& c) {
  const int64_t columns = 3 * padded(c.hidden_size) + padded(c.qkvg_rows()) +
                          padded(c.value_width()) + padded(c.intermediate_size) + padded(widest(c));
  return kPassRows * columns * 4;
}

CpuExecutor::Buffer CpuExecutor::make_buffer(int64_t columns) {
  const int64_t stride = padded(columns);
  return {touched(size_t(kPassRows * stride) * sizeof(float)), stride};
}

CpuExecutor::CpuExecutor(std::shared_ptr<const CpuModel> model, int64_t slots, int threads,
                         bool poison, std::vector<int> cores)
    : model_(std::move(model)),
      kernels_(model_->kernels()),
      pool_(model_->config(), slots, poison),
      threads_(threads, std::move(cores)),
      part_of_(kPassRows),
      x_(make_buffer(config().hidden_size)),
      h_(make_buffer(config().hidden_size)),
      c_(make_buffer(config().hidden_size)),
      qkvg_(make_buffer(config().qkvg_rows())),
      z_(make_buffer(config().value_width())),
      f_(make_buffer(config().intermediate_size)),
      act_(make_buffer(widest(config()))),
      act_scales_(kPassRows) {
  const cpu::Gemm& gemm = kernels_.gemm[size_t(model_->type())];
  const int64_t gla = 4 * (config().head_k_dim + config().head_v_dim);
  for (int i = 0; i < threads_.threads(); ++i) {
    scratch_.push_back(touched(size_t(std::max(gemm.scratch_bytes(kPassRows), gla))));
  }
  warm();
}

// What the first steps would wait for: the pages of the first slots, and a token through all
// weights.
void CpuExecutor::warm() {
  const int64_t slot_bytes = pool_.slot_floats() * int64_t{sizeof(float)};
  const int64_t count = std::min(std::max<int64_t>(kWarmBytes / slot_bytes, 1), pool_.slots());
  if (count == 0) return;
  for (int64_t slot = 0; slot < count; ++slot) pool_.zero(slot);
  const TokenId token = 0;
  const int64_t row = 0;
  std::vector<float> logits(size_t(config().vocab_size));
  threads_.begin();
  CpuExecutor::step(std::array{Segment{0, {&token, 1}}}, {&row, 1}, logits.data());
  threads_.end();
  for (int64_t slot = 0; slot < count; ++slot) pool_.release(slot);
}

std::string CpuExecutor::description() const {
  constexpr std::array kNames = {"float32", "bfloat16", "int8", "int4"};
  return cat(kNames[size_t(model_->type())], " on cpu (", kernels_.name, "), ", threads_.threads(),
             threads_.threads() == 1 ? " thread" : " threads");
}

void CpuExecutor::save(int64_t slot, std::span<float> state) {
  std::ranges::copy(pool_.whole(slot), state.begin());
}

void CpuExecutor::load(int64_t slot, std::span<const float> state) {
  std::ranges::copy(state, pool_.whole(slot).begin());
}

void CpuExecutor::parallel(int64_t count, const std::function<void(int64_t)>& body) {
  threads_.run(count, 1, [&](int64_t first, int64_t last, int) {
    for (int64_t i = first; i < last; ++i) body(i);
  });
}

// Some pieces a thread, so that one that is late does not hold up the others.
int64_t CpuExecutor::grain(int64_t count) const {
  return std::max<int64_t>(count / (int64_t{threads_.threads()} * 8), 1);
}

void CpuExecutor::step(std::span<const Segment> segments, std::span<const int64_t> logit_rows,
                       float* logits) {
  std::vector<Part> parts;
  std::vector<int64_t> wanted;
  int64_t rows = 0, before = 0;  // rows in this pass, and in earlier ones
  size_t next = 0;               // of logit_rows
  const auto flush = [&] {
    if (rows == 0) return;
    pass(parts, rows);
    wanted.clear();
    for (; next < logit_rows.size() && logit_rows[next] < before + rows; ++next) {
      wanted.push_back(logit_rows[next] - before);
    }
    head(wanted, logits);
    logits += int64_t(wanted.size()) * config().vocab_size;
    before += rows;
    rows = 0;
    parts.clear();
    tokens_.clear();
  };
  tokens_.clear();
  for (const Segment& segment : segments) {
    std::span<const TokenId> tokens = segment.tokens;
    while (!tokens.empty()) {
      const int64_t count = std::min(int64_t(tokens.size()), kPassRows - rows);
      parts.push_back({segment.slot, rows, count});
      tokens_.insert(tokens_.end(), tokens.begin(), tokens.begin() + count);
      rows += count;
      tokens = tokens.subspan(size_t(count));
      if (rows == kPassRows) flush();
    }
  }
  flush();
}

void CpuExecutor::pass(std::span<const Part> parts, int64_t rows) {
  for (size_t p = 0; p < parts.size(); ++p) {
    std::fill_n(part_of_.begin() + parts[p].first, parts[p].count, int64_t(p));
  }
  for (int64_t r = 0; r < rows; ++r) model_->embed(tokens_[size_t(r)], x_.row(r));
  for (int64_t i = 0; i < config().num_hidden_layers; ++i) run_layer(i, parts, rows);
}

void CpuExecutor::run_layer(int64_t i, std::span<const Part> parts, int64_t rows) {
  const CpuModel::Layer& w = model_->layer(i);
  const int64_t D = config().hidden_size, F = config().intermediate_size;
  threads_.run(rows, grain(rows), [&](int64_t first, int64_t last, int) {
    for (int64_t r = first; r < last; ++r) {
      kernels_.layer_norm(x_.row(r), w.attn_norm.data(), D, float(config().norm_eps), h_.row(r));
    }
  });
  convolve(i, parts, rows);
  multiply(w.qkvg, c_, rows, cpu::Epilogue::kStore, qkvg_.row(0), qkvg_.stride, w.qkvg.N);
  mix(i, parts);
  prepare(w.out, z_, rows);
  multiply(w.out, z_, rows, cpu::Epilogue::kAdd, x_.row(0), x_.stride, D);
  norm_rows(w.mlp_norm, rows, w.gate_up);
  multiply(w.gate_up, h_, rows, cpu::Epilogue::kSwiglu, f_.row(0), f_.stride, F);
  prepare(w.down, f_, rows);
  multiply(w.down, f_, rows, cpu::Epilogue::kAdd, x_.row(0), x_.stride, D);
}

// Row r's inputs are the rows before it in its part, and before those the slot's window.
void CpuExecutor::convolve(int64_t i, std::span<const Part> parts, int64_t rows) {
  const CpuModel::Layer& w = model_->layer(i);
  const int64_t D = config().hidden_size, taps = config().conv_kernel;
  threads_.run(rows, grain(rows), [&](int64_t first, int64_t last, int) {
    std::array<const float*, kMaxTaps> inputs{};
    for (int64_t r = first; r < last; ++r) {
      const Part& part = parts[size_t(part_of_[size_t(r)])];
      const float* const window = pool_.window(part.slot, i);
      for (int64_t j = 0; j < taps; ++j) {
        const int64_t from = r - (taps - 1) + j;
        inputs[size_t(j)] =
            from >= part.first ? h_.row(from) : window + (taps + from - part.first) * D;
      }
      kernels_.conv(inputs.data(), w.conv.data(), taps, D, c_.row(r));
      prepare_row(w.qkvg, c_, r);
    }
  });
}

// The last k inputs: those of the window that are left, then the rows.
void CpuExecutor::shift_window(int64_t layer, const Part& part) {
  const int64_t D = config().hidden_size, taps = config().conv_kernel;
  float* const window = pool_.window(part.slot, layer);
  const int64_t kept = std::max<int64_t>(taps - part.count, 0);
  if (kept > 0) std::memmove(window, window + (taps - kept) * D, size_t(kept * D) * sizeof(float));
  for (int64_t j = kept; j < taps; ++j) {
    std::copy_n(h_.row(part.first + part.count - taps + j), D, window + j * D);
  }
}

// The recurrence and what follows it, by (part, head); and the windows, which are free by now.
void CpuExecutor::mix(int64_t i, std::span<const Part> parts) {
  const ModelConfig& c = config();
  const CpuModel::Layer& w = model_->layer(i);
  const int64_t H = c.num_heads, dk = c.head_k_dim, dv = c.head_v_dim;
  const auto heads = int64_t(parts.size()) * H;
  const int64_t tasks = heads + int64_t(parts.size());
  threads_.run(tasks, std::max<int64_t>(tasks / (int64_t{threads_.threads()} * 16), 1),
               [&](int64_t first, int64_t last, int thread) {
                 for (int64_t task = first; task < last; ++task) {
                   if (task >= heads) {
                     shift_window(i, parts[size_t(task - heads)]);
                     continue;
                   }
                   const Part& part = parts[size_t(task / H)];
                   const int64_t h = task % H;
                   const int64_t q = h * dk, k = H * dk + h * dk, v = 2 * H * dk + h * dv;
                   kernels_.gla({.qkvg = qkvg_.row(part.first) + q,
                                 .k_offset = k - q,
                                 .v_offset = v - q,
                                 .g_offset = v + H * dv - q,
                                 .stride = qkvg_.stride,
                                 .y = z_.row(part.first) + h * dv,
                                 .y_stride = z_.stride,
                                 .tokens = part.count,
                                 .dk = dk,
                                 .dv = dv,
                                 .fade = model_->fade(h),
                                 .scale = float(1.0 / std::sqrt(double(dk))),
                                 .eps = float(c.norm_eps),
                                 .aug = w.aug.data() + h * dk,
                                 .norm = w.head_norm.data() + c.tier_of_head(h) * dv,
                                 .S = pool_.S(part.slot, i) + h * dk * dv,
                                 .scratch = scratch_[size_t(thread)].as<float>()});
                 }
               });
}

void CpuExecutor::norm_rows(const std::vector<float>& weight, int64_t rows,
                            const PackedMatrix& next) {
  threads_.run(rows, grain(rows), [&](int64_t first, int64_t last, int) {
    for (int64_t r = first; r < last; ++r) {
      kernels_.layer_norm(x_.row(r), weight.data(), config().hidden_size, float(config().norm_eps),
                          h_.row(r));
      prepare_row(next, h_, r);
    }
  });
}

void CpuExecutor::prepare_row(const PackedMatrix& matrix, Buffer& from, int64_t r) {
  const cpu::Gemm& gemm = *matrix.gemm;
  if (gemm.prepare == nullptr) return;
  auto* const out = reinterpret_cast<std::byte*>(act_.row(r));
  gemm.prepare(from.row(r), matrix.K, out, &act_scales_[size_t(r)]);
  const int64_t steps = gemm.steps_of(matrix.K);
  const int64_t element = gemm.x_step_bytes / gemm.step;
  // What pads the last step meets zero weights, but NaN times zero is NaN.
  std::memset(out + matrix.K * element, 0, size_t((steps * gemm.step - matrix.K) * element));
}

void CpuExecutor::prepare(const PackedMatrix& matrix, Buffer& from, int64_t rows) {
  if (matrix.gemm->prepare == nullptr) return;
  threads_.run(rows, grain(rows), [&](int64_t first, int64_t last, int) {
    for (int64_t r = first; r < last; ++r) prepare_row(matrix, from, r);
  });
}

void CpuExecutor::multiply(const PackedMatrix& matrix, Buffer& from, int64_t rows,
                           cpu::Epilogue epilogue, float* out, int64_t out_stride,
                           int64_t columns) {
  const cpu::Gemm& gemm = *matrix.gemm;
  Buffer& x = gemm.prepare == nullptr ? from : act_;
  const cpu::GemmArgs args = {
      .weights = matrix.data.data(),
      .panel_bytes = matrix.panel_bytes,
      .scales = matrix.scales.data(),
      .columns = columns,
      .steps = gemm.steps_of(matrix.K),
      .x = reinterpret_cast<const std::byte*>(x.row(0)),
      .x_stride = x.stride * int64_t{sizeof(float)},
      .x_scales = act_scales_.data(),
      .m = rows,
      .epilogue = epilogue,
      .out = out,
      .out_stride = out_stride,
  };
  const int64_t pieces = int64_t{threads_.threads()} * 16;
  const int64_t groups = (matrix.panels + gemm.group - 1) / gemm.group;
  const int64_t grain = std::max<int64_t>(groups / pieces, 1) * gemm.group;
  threads_.run(matrix.panels, grain, [&](int64_t first, int64_t last, int thread) {
    gemm.run(args, first, last, scratch_[size_t(thread)].data());
  });
}

void CpuExecutor::head(std::span<const int64_t> rows, float* logits) {
  if (rows.empty()) return;
  // Ascending rows, so that none is overwritten before it has moved.
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] != int64_t(i)) {
      std::copy_n(x_.row(rows[i]), config().hidden_size, x_.row(int64_t(i)));
    }
  }
  norm_rows(model_->norm(), int64_t(rows.size()), model_->head());
  multiply(model_->head(), h_, int64_t(rows.size()), cpu::Epilogue::kStore, logits,
           config().vocab_size, config().vocab_size);
}

}  // namespace laplace
