// The model: tokens in, hidden states, logits or the loss out, over a state of constant size.
//
// One decoder layer (x [B,T,D], the residual stream, float32):
//
//   c = short_conv(layer_norm(x))            q, k, v, g = split(W_qkvg c)
//   x += W_out gla_output(gla(q, k, v), q, k, v, g)
//   x += W_down swiglu(W_gate_up layer_norm(x))
//
// then a final layer_norm and the head. Matrix products run in the compute dtype (that of the
// matrices), sums and the state in float32 (all in float64 for float64 weights).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <optional>
#include <span>
#include <vector>

#include "model/config.h"
#include "model/parameters.h"

namespace laplace {

// What one layer remembers of B sequences. Source: interfaces of the model files in docs/files.md.
struct LayerState {
  at::Tensor S;       // [B,H,dk,dv]
  at::Tensor window;  // [B,k,D], the convolution's last k inputs, oldest first
};
using ModelState = std::vector<LayerState>;

// One layer's weights, and their places among a layer's parameters in the table.
struct LayerWeights {
  const at::Tensor &attn_norm, &conv, &qkvg, &aug_balance, &head_norm, &out, &mlp_norm, &gate_up,
      &down;
};
enum LayerParameter : size_t {
  kAttnNorm,
  kConv,
  kQkvg,
  kAugBalance,
  kHeadNorm,
  kOut,
  kMlpNorm,
  kGateUp,
  kDown,
  kLayerTensors
};

// What the recurrence and its output read: views [B,T,H,dk] and [B,T,H,dv] of W_qkvg's rows.
struct LayerHeads {
  at::Tensor q, k, v, g;
};
// qkvg: [B*T, H(2dk+2dv)], in any shape of as many elements.
LayerHeads split_heads(const at::Tensor& qkvg, const ModelConfig& config, int64_t B, int64_t T);

// How the recurrence is evaluated; both give the same result up to rounding.
enum class Form { kChunked, kRecurrent };

// True for the parameters that activations are multiplied with: the matrices and the head.
bool is_matrix_product(const ParameterSpec& spec);

// The dtype a parameter has in the computation: matrices and the head in `compute`, what is small
// or looked up (embedding, norms, conv, aug_balance) in float32 (float64 for float64).
at::ScalarType compute_dtype_of(const ParameterSpec& spec, at::ScalarType compute);

class Decoder {
 public:
  // `weights` in the order of parameter_table(config), with the dtypes of compute_dtype_of, all on
  // one device. They are shared, not copied: training changes them in place, their gradients are in
  // .grad(). Const members may run on several threads at once.
  Decoder(const ModelConfig& config, std::vector<at::Tensor> weights);

  // Opens a model directory's weights in `compute` on `device`.
  static Decoder open(const Path& directory, const ModelConfig& config, at::ScalarType compute,
                      c10::Device device);

  const ModelConfig& config() const { return config_; }
  std::span<const at::Tensor> weights() const { return weights_; }
  LayerWeights layer(int64_t index) const;
  const at::Tensor& log_decay() const { return log_decay_; }
  at::ScalarType compute_dtype() const;
  c10::Device device() const;

  // Zeros for `batch` sequences.
  ModelState zero_state(int64_t batch) const;

  // tokens [B,T] int64 -> hidden states after the final norm, [B*T, D] in the compute dtype.
  // `state`, when given, is what came before, and is replaced by what comes after (its tensors are
  // never written to). doc_start [B,T] as in ops/gla_chunk. `residuals` collects the residual
  // stream before each layer and after the last.
  at::Tensor hidden(const at::Tensor& tokens, const std::optional<at::Tensor>& doc_start = {},
                    ModelState* state = nullptr, Form form = Form::kChunked,
                    std::vector<at::Tensor>* residuals = nullptr) const;

  // hidden [n,D] -> logits [n,V] in float32 (float64).
  at::Tensor logits(const at::Tensor& hidden) const;
  // Mean cross entropy of every position. tokens [B,T+1]: inputs [:, :T], targets [:, 1:].
  at::Tensor loss(const at::Tensor& tokens, const std::optional<at::Tensor>& doc_start) const;
  // One token of each sequence, tokens [B]: logits [B,V]; `state` is updated in place.
  at::Tensor step(const at::Tensor& tokens, ModelState& state) const;

 private:
  at::Tensor layer_forward(const LayerWeights& layer, const at::Tensor& x,
                           const std::optional<at::Tensor>& doc_start, LayerState* state,
                           Form form) const;

  ModelConfig config_;
  std::vector<at::Tensor> weights_;
  at::Tensor log_decay_;  // [H] float32 on the host, never cast
};

}  // namespace laplace
