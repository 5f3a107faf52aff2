// See gradient_pass.h.
#include "model/gradient_pass.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>

#include "base/error.h"
#include "base/memory.h"
#include "ops/gla_chunk/gla_chunk.h"
#include "ops/gla_output/gla_output.h"
#include "ops/layer_norm/layer_norm.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/short_conv/short_conv.h"
#include "ops/swiglu/swiglu.h"

namespace laplace {

using std::optional;

namespace {

// [n,k] x [rows,k]^T
at::Tensor project(const at::Tensor& in, const at::Tensor& weight) {
  return at::mm(in.view({-1, weight.size(1)}), weight.t());
}

// x + in weight^T in x's dtype, x [B,T,D].
at::Tensor project_onto(const at::Tensor& x, const at::Tensor& in, const at::Tensor& weight) {
  const at::Tensor rows = in.view({-1, weight.size(1)});
  if (x.scalar_type() != weight.scalar_type()) {
    return at::add(x, at::mm(rows, weight.t()).view(x.sizes()));
  }
  return at::addmm(x.view({-1, x.size(2)}), rows, weight.t()).view(x.sizes());
}

// gradient += d_out^T in, both [n, .] in the compute dtype, the gradient in float32 (float64).
void add_product(at::Tensor& gradient, const at::Tensor& d_out, const at::Tensor& in) {
  const at::Tensor rows = in.view({d_out.size(0), -1});
  if (gradient.scalar_type() == rows.scalar_type()) {
    at::addmm_out(gradient, gradient, d_out.t(), rows);
  } else {
    gradient.add_(at::mm(d_out.t(), rows));
  }
}

// Adds row i of d_x [n,D] to row tokens[i] of `gradient` [V,D], in ascending order of i.
void add_to_rows(at::Tensor& gradient, const at::Tensor& tokens, const at::Tensor& d_x) {
  if (!gradient.is_cpu() || gradient.scalar_type() != at::kFloat) {
    gradient.index_add_(0, tokens, d_x);
    return;
  }
  const int64_t n = tokens.numel(), D = gradient.size(1);
  const int64_t* const ids = tokens.const_data_ptr<int64_t>();
  const float* const from = d_x.const_data_ptr<float>();
  float* const to = gradient.mutable_data_ptr<float>();
  constexpr int64_t kColumns = 64;  // a thread takes columns of all rows: no two add to one place
  at::parallel_for(0, (D + kColumns - 1) / kColumns, 1, [&](int64_t first, int64_t last) {
    const int64_t begin = first * kColumns, end = std::min(last * kColumns, D);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t d = begin; d < end; ++d) to[ids[i] * D + d] += from[i * D + d];
    }
  });
}

}  // namespace

Recompute parse_recompute(std::string_view name) {
  if (name == "none") return Recompute::kNone;
  if (name == "layer") return Recompute::kLayer;
  if (name == "auto") return Recompute::kAuto;
  fail_input("--recompute is ", quoted(name), ", but must be auto, none or layer");
}

int64_t LayerActivations::bytes() const {
  int64_t sum = 0;
  for (const at::Tensor* t : {&x, &mean, &rstd, &h, &c, &qkvg, &o, &chunk_states, &y, &mixed,
                              &mlp_mean, &mlp_rstd, &m, &gate_up, &a}) {
    sum += int64_t(t->nbytes());
  }
  return sum;
}

GradientPass::GradientPass(const Decoder& decoder, Recompute recompute, PhaseClock* clock)
    : decoder_(decoder), recompute_(recompute), clock_(clock) {}

void GradientPass::lap(std::string_view phase) const {
  if (clock_ != nullptr) clock_->lap(phase);
}

at::Tensor GradientPass::forward(const LayerWeights& w, const at::Tensor& x,
                                 const optional<at::Tensor>& doc_start,
                                 LayerActivations* kept) const {
  const ModelConfig& c = decoder_.config();
  const auto dtype = decoder_.compute_dtype();
  const int64_t B = x.size(0), T = x.size(1);
  LayerActivations a;
  a.x = x;
  std::tie(a.h, a.mean, a.rstd) = ops::layer_norm_forward(x, w.attn_norm, c.norm_eps, dtype);
  lap("layer_norm");
  a.c = std::get<0>(ops::short_conv_forward(a.h, w.conv, {}, doc_start));
  lap("conv");
  a.qkvg = project(a.c, w.qkvg);
  lap("qkvg");
  const LayerHeads heads = split_heads(a.qkvg, c, B, T);
  std::tie(a.o, std::ignore, a.chunk_states) = ops::gla_chunk_forward(
      heads.q, heads.k, heads.v, decoder_.log_decay(), {}, doc_start, c.chunk_size);
  lap("gla_chunk");
  a.y = ops::gla_output_forward(a.o, heads.q, heads.k, heads.v, heads.g, w.aug_balance, w.head_norm,
                                c.norm_eps);
  lap("gla_output");
  a.mixed = project_onto(x, a.y, w.out);
  lap("out");
  std::tie(a.m, a.mlp_mean, a.mlp_rstd) =
      ops::layer_norm_forward(a.mixed, w.mlp_norm, c.norm_eps, dtype);
  lap("layer_norm");
  a.gate_up = project(a.m, w.gate_up);
  lap("mlp");
  a.a = ops::swiglu_forward(a.gate_up);
  lap("swiglu");
  at::Tensor out = project_onto(a.mixed, a.a, w.down);
  lap("mlp");
  if (kept != nullptr) *kept = std::move(a);
  return out;
}

at::Tensor GradientPass::mixer_backward(const LayerWeights& w, const LayerActivations& kept,
                                        const optional<at::Tensor>& doc_start,
                                        const at::Tensor& d_y, Gradients gradients) const {
  const ModelConfig& c = decoder_.config();
  const int64_t B = kept.x.size(0), T = kept.x.size(1);
  const LayerHeads heads = split_heads(kept.qkvg, c, B, T);
  const at::Tensor d_qkvg = at::empty(kept.qkvg.sizes(), kept.qkvg.options());
  LayerHeads d = split_heads(d_qkvg, c, B, T);
  const auto [d_o, d_balance, d_norm] =
      ops::gla_output_backward(d_y.view(kept.o.sizes()), kept.o, heads.q, heads.k, heads.v, heads.g,
                               w.aug_balance, w.head_norm, c.norm_eps, d.q, d.k, d.v, d.g);
  gradients[kAugBalance].add_(d_balance);
  gradients[kHeadNorm].add_(d_norm);
  lap("gla_output backward");
  ops::gla_chunk_backward(d_o, {}, heads.q, heads.k, heads.v, decoder_.log_decay(),
                          kept.chunk_states, doc_start, c.chunk_size, /*accumulate=*/true, d.q, d.k,
                          d.v);
  lap("gla_chunk backward");
  add_product(gradients[kQkvg], d_qkvg, kept.c);
  const at::Tensor d_c = at::mm(d_qkvg, w.qkvg).view(kept.c.sizes());
  lap("qkvg backward");
  const auto [d_h, d_conv, d_window] =
      ops::short_conv_backward(d_c, {}, kept.h, w.conv, {}, doc_start);
  gradients[kConv].add_(d_conv);
  lap("conv backward");
  return d_h;
}

at::Tensor GradientPass::backward(const LayerWeights& w, const LayerActivations& kept,
                                  const optional<at::Tensor>& doc_start, const at::Tensor& d_out,
                                  Gradients gradients) const {
  const auto dtype = decoder_.compute_dtype();
  const int64_t D = d_out.size(2);
  at::Tensor d_rows = d_out.to(dtype).view({-1, D});
  add_product(gradients[kDown], d_rows, kept.a);
  const at::Tensor d_a = at::mm(d_rows, w.down);
  lap("mlp backward");
  const at::Tensor d_gate_up = ops::swiglu_backward(d_a, kept.gate_up);
  lap("swiglu backward");
  add_product(gradients[kGateUp], d_gate_up, kept.m);
  const at::Tensor d_m = at::mm(d_gate_up, w.gate_up).view(kept.m.sizes());
  lap("mlp backward");
  auto [d_mixed, d_mlp_norm] =
      ops::layer_norm_backward(d_m, kept.mixed, w.mlp_norm, kept.mlp_mean, kept.mlp_rstd);
  gradients[kMlpNorm].add_(d_mlp_norm);
  d_mixed.add_(d_out);
  lap("layer_norm backward");
  d_rows = d_mixed.to(dtype).view({-1, D});
  add_product(gradients[kOut], d_rows, kept.y);
  const at::Tensor d_y = at::mm(d_rows, w.out);
  lap("out backward");
  const at::Tensor d_h = mixer_backward(w, kept, doc_start, d_y, gradients);
  auto [d_x, d_norm] = ops::layer_norm_backward(d_h, kept.x, w.attn_norm, kept.mean, kept.rstd);
  gradients[kAttnNorm].add_(d_norm);
  d_x.add_(d_mixed);
  lap("layer_norm backward");
  return d_x;
}

// The final norm, the head and the loss, and back to the residual stream.
double GradientPass::head(const at::Tensor& x, const at::Tensor& targets, double weight,
                          Gradients gradients, at::Tensor* d_x) const {
  const auto weights = decoder_.weights();
  const at::Tensor& norm = weights[weights.size() - 2];
  const auto [h, mean, rstd] =
      ops::layer_norm_forward(x, norm, decoder_.config().norm_eps, decoder_.compute_dtype());
  lap("layer_norm");
  const auto [loss, d_h, d_head] = ops::linear_cross_entropy_forward(
      h.view({-1, x.size(2)}), weights.back(), targets, /*gradients=*/true);
  gradients.back().add_(d_head, weight);
  lap("head and loss");
  at::Tensor d_norm;
  std::tie(*d_x, d_norm) =
      ops::layer_norm_backward(at::mul(d_h, weight).view(x.sizes()), x, norm, mean, rstd);
  gradients[gradients.size() - 2].add_(d_norm);
  lap("layer_norm backward");
  return loss.item<double>();
}

// Decides kAuto by the first layer's size.
bool GradientPass::keeps(const LayerActivations& first_layer) {
  if (recompute_ == Recompute::kAuto) {
    constexpr double kShare = 0.4;
    const double wanted = double(first_layer.bytes()) * double(decoder_.config().num_hidden_layers);
    const bool fits = !first_layer.x.is_cpu() || wanted < kShare * double(available_memory());
    recompute_ = fits ? Recompute::kNone : Recompute::kLayer;
  }
  return recompute_ == Recompute::kNone;
}

double GradientPass::run(const at::Tensor& tokens, const optional<at::Tensor>& doc_start,
                         double weight, std::span<at::Tensor> gradients) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const int64_t T = tokens.size(1) - 1, layers = decoder_.config().num_hidden_layers;
  const at::Tensor inputs = tokens.slice(1, 0, T).contiguous(),
                   targets = tokens.slice(1, 1).reshape({-1});
  at::Tensor x = at::embedding(decoder_.weights().front(), inputs);
  lap("embedding");
  std::vector<LayerActivations> kept(static_cast<size_t>(layers));
  for (int64_t i = 0; i < layers; ++i) {
    LayerActivations& activations = kept[size_t(i)];
    const at::Tensor entering = x;
    x = forward(decoder_.layer(i), x, doc_start, &activations);
    if (!keeps(activations)) activations = {}, activations.x = entering;
  }
  at::Tensor d_x;
  const double loss = head(x, targets, weight, gradients, &d_x);
  x.reset();
  for (int64_t i = layers - 1; i >= 0; --i) {
    const LayerWeights w = decoder_.layer(i);
    LayerActivations& activations = kept[size_t(i)];
    if (!activations.h.defined()) forward(w, at::Tensor(activations.x), doc_start, &activations);
    d_x = backward(w, activations, doc_start, d_x,
                   gradients.subspan(size_t(1 + i * kLayerTensors), kLayerTensors));
    activations = {};
  }
  add_to_rows(gradients.front(), inputs.view({-1}), d_x.view({-1, d_x.size(2)}));
  lap("embedding backward");
  return loss;
}

}  // namespace laplace
