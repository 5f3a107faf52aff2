// The loss of a batch and the gradients of all parameters, layer by layer, without an autograd
// graph.
//
// Forward keeps the residual stream at each layer's start and, unless a layer is recomputed, what
// its operators need; backward walks the layers in reverse and adds each weight's gradient where it
// belongs. A layer is the unit: of recomputation here, of gathering and reduction with many ranks.
// Source of recomputation by layer: Chen et al., "Training Deep Nets with Sublinear Memory Cost"
// (arXiv 1604.06174).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/decoder.h"

namespace laplace {

// What backward does about a layer's activations.
enum class Recompute {
  kNone,   // all are kept
  kLayer,  // only the residual stream is kept: a third more products, a fraction of the memory
  kAuto,   // kept if all layers' fit in 40 % of the memory that is free at the first pass
};
// "none", "layer" or "auto"; throws Error(kBadInput) for any other name.
Recompute parse_recompute(std::string_view name);

// What one layer's operators leave for backward. Names as in decoder.h.
struct LayerActivations {
  at::Tensor x;                      // [B,T,D], enters the layer
  at::Tensor mean, rstd, h, c;       // layer_norm and short_conv
  at::Tensor qkvg, o, chunk_states;  // the projection and the recurrence
  at::Tensor y, mixed;               // gla_output; the residual stream after the mixer
  at::Tensor mlp_mean, mlp_rstd, m;  // the second layer_norm
  at::Tensor gate_up, a;             // the MLP

  int64_t bytes() const;
};

// Seconds by phase, for `laplace bench train`.
class PhaseClock {
 public:
  virtual ~PhaseClock() = default;
  // What ran since the last call was `phase`.
  virtual void lap(std::string_view phase) = 0;
};

// One thread at a time; operators inside run on ATen's threads. Same bits for any Recompute.
class GradientPass {
 public:
  // `decoder` must outlive this.
  GradientPass(const Decoder& decoder, Recompute recompute, PhaseClock* clock = nullptr);

  // Adds `weight` times the gradients of the mean loss of tokens [B,T+1] to `gradients`, one a
  // parameter in the order of the table, float32 (float64). Returns the mean loss.
  double run(const at::Tensor& tokens, const std::optional<at::Tensor>& doc_start, double weight,
             std::span<at::Tensor> gradients);

 private:
  using Gradients = std::span<at::Tensor>;

  at::Tensor forward(const LayerWeights& w, const at::Tensor& x,
                     const std::optional<at::Tensor>& doc_start, LayerActivations* kept) const;
  at::Tensor backward(const LayerWeights& w, const LayerActivations& kept,
                      const std::optional<at::Tensor>& doc_start, const at::Tensor& d_out,
                      Gradients gradients) const;
  at::Tensor mixer_backward(const LayerWeights& w, const LayerActivations& kept,
                            const std::optional<at::Tensor>& doc_start, const at::Tensor& d_y,
                            Gradients gradients) const;
  double head(const at::Tensor& x, const at::Tensor& targets, double weight, Gradients gradients,
              at::Tensor* d_x) const;
  bool keeps(const LayerActivations& first_layer);
  void lap(std::string_view phase) const;

  const Decoder& decoder_;
  Recompute recompute_;
  PhaseClock* clock_;
};

}  // namespace laplace
