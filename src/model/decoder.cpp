// See decoder.h.
#include "model/decoder.h"

#include <ATen/ops/add.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "model/weight_files.h"
#include "ops/gla_chunk/gla_chunk.h"
#include "ops/gla_output/gla_output.h"
#include "ops/gla_step/gla_step.h"
#include "ops/layer_norm/layer_norm.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/short_conv/short_conv.h"
#include "ops/swiglu/swiglu.h"

namespace laplace {

using std::optional;

namespace {

// The recurrence one token after another: q, k, v [B,T,H,d] -> o [B,T,H,dv], S in place.
at::Tensor recurrence(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      const at::Tensor& log_decay, at::Tensor& S) {
  std::vector<at::Tensor> o;
  for (int64_t t = 0; t < q.size(1); ++t) {
    o.push_back(ops::gla_step(q.select(1, t), k.select(1, t), v.select(1, t), log_decay, S));
  }
  return at::stack(o, 1);
}

}  // namespace

bool is_matrix_product(const ParameterSpec& spec) {
  return spec.role == ParameterRole::kMuon || spec.name == "head.weight";
}

at::ScalarType compute_dtype_of(const ParameterSpec& spec, at::ScalarType compute) {
  return is_matrix_product(spec) || compute == at::kDouble ? compute : at::kFloat;
}

Decoder::Decoder(const ModelConfig& config, std::vector<at::Tensor> weights)
    : config_(config), weights_(std::move(weights)), log_decay_(at::tensor(config.log_decays())) {
  const auto table = parameter_table(config_);
  if (table.size() != weights_.size()) fail("the model needs ", table.size(), " weights");
  for (size_t i = 0; i < table.size(); ++i) {
    if (weights_[i].sizes() != c10::IntArrayRef(table[i].shape)) {
      fail("the weight ", table[i].name, " has a wrong shape");
    }
  }
}

Decoder Decoder::open(const Path& directory, const ModelConfig& config, at::ScalarType compute,
                      c10::Device device) {
  std::vector<at::Tensor> weights = load_weights(directory, config);
  const auto table = parameter_table(config);
  for (size_t i = 0; i < table.size(); ++i) {
    weights[i] = weights[i].to(device, compute_dtype_of(table[i], compute), /*non_blocking=*/false,
                               /*copy=*/true);
  }
  return {config, std::move(weights)};
}

at::ScalarType Decoder::compute_dtype() const { return weights_.back().scalar_type(); }

c10::Device Decoder::device() const { return weights_.back().device(); }

ModelState Decoder::zero_state(int64_t batch) const {
  const ModelConfig& c = config_;
  const auto options = weights_.front().options();
  ModelState state;
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    state.push_back({at::zeros({batch, c.num_heads, c.head_k_dim, c.head_v_dim}, options),
                     at::zeros({batch, c.conv_kernel, c.hidden_size}, options)});
  }
  return state;
}

LayerHeads split_heads(const at::Tensor& qkvg, const ModelConfig& c, int64_t B, int64_t T) {
  const int64_t keys = c.num_heads * c.head_k_dim, values = c.value_width();
  const auto parts = qkvg.view({B, T, -1}).split_with_sizes({keys, keys, values, values}, -1);
  const auto heads = [&](size_t i) { return parts[i].unflatten(-1, {c.num_heads, -1}); };
  return {heads(0), heads(1), heads(2), heads(3)};
}

LayerWeights Decoder::layer(int64_t index) const {
  const auto* const w = &weights_[1 + size_t(index) * kLayerTensors];
  return {w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8]};
}

at::Tensor Decoder::layer_forward(const LayerWeights& w, const at::Tensor& x,
                                  const optional<at::Tensor>& doc_start, LayerState* state,
                                  Form form) const {
  const ModelConfig& c = config_;
  const int64_t B = x.size(0), T = x.size(1);
  const auto dtype = compute_dtype();
  const auto project = [&](const at::Tensor& in,
                           const at::Tensor& weight) {  // [B,T,·] -> [B,T,rows]
    return at::mm(in.reshape({B * T, -1}), weight.t()).view({B, T, -1});
  };

  const at::Tensor h = ops::layer_norm(x, w.attn_norm, c.norm_eps, dtype);
  const auto [conv, window] = ops::short_conv(
      h, w.conv, state == nullptr ? std::nullopt : optional(state->window), doc_start);
  const auto [q, k, v, g] = split_heads(project(conv, w.qkvg), c, B, T);

  at::Tensor o, S;
  if (form == Form::kRecurrent) {
    S = state->S;
    o = recurrence(q, k, v, log_decay_, S);
  } else {
    std::tie(o, S) =
        ops::gla_chunk(q, k, v, log_decay_, state == nullptr ? std::nullopt : optional(state->S),
                       doc_start, c.chunk_size);
  }
  if (state != nullptr) *state = {S, window};

  const at::Tensor y = ops::gla_output(o, q, k, v, g, w.aug_balance, w.head_norm, c.norm_eps);
  const at::Tensor mixed = at::add(x, project(y, w.out));
  const at::Tensor m = ops::layer_norm(mixed, w.mlp_norm, c.norm_eps, dtype);
  return at::add(mixed, project(ops::swiglu(project(m, w.gate_up)), w.down));
}

at::Tensor Decoder::hidden(const at::Tensor& tokens, const optional<at::Tensor>& doc_start,
                           ModelState* state, Form form, std::vector<at::Tensor>* residuals) const {
  ModelState fresh;
  if (form == Form::kRecurrent) {
    if (doc_start) fail("the recurrent form takes one document at a time");
    if (state == nullptr) fresh = zero_state(tokens.size(0)), state = &fresh;
  }
  at::Tensor x = at::embedding(weights_.front(), tokens);
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    if (residuals != nullptr) residuals->push_back(x);
    LayerState* const layer_state = state == nullptr ? nullptr : &(*state)[size_t(i)];
    x = layer_forward(layer(i), x, doc_start, layer_state, form);
  }
  if (residuals != nullptr) residuals->push_back(x);
  const at::Tensor& norm = weights_[weights_.size() - 2];
  return ops::layer_norm(x, norm, config_.norm_eps, compute_dtype())
      .view({-1, config_.hidden_size});
}

at::Tensor Decoder::logits(const at::Tensor& hidden) const {
  const auto dtype = compute_dtype() == at::kDouble ? at::kDouble : at::kFloat;
  return at::mm(hidden, weights_.back().t()).to(dtype);
}

at::Tensor Decoder::loss(const at::Tensor& tokens, const optional<at::Tensor>& doc_start) const {
  const int64_t T = tokens.size(1) - 1;
  const at::Tensor inputs = tokens.slice(1, 0, T), targets = tokens.slice(1, 1);
  return ops::linear_cross_entropy(hidden(inputs, doc_start), weights_.back(),
                                   targets.reshape({-1}));
}

at::Tensor Decoder::step(const at::Tensor& tokens, ModelState& state) const {
  return logits(hidden(tokens.unsqueeze(1), {}, &state, Form::kRecurrent));
}

}  // namespace laplace
