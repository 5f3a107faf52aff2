// See learner.h.
#include "train/learner.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include "base/error.h"
#include "model/compute_dtype.h"

namespace laplace {

namespace {

bool is_muon(const ParameterSpec& spec) { return spec.role == ParameterRole::kMuon; }

// Matrices and the embedding are decayed; norms, conv and aug_balance are not.
bool is_decayed(const ParameterSpec& spec) {
  return spec.init == Init::kNormal || spec.init == Init::kNormalResidual;
}

}  // namespace

Learner::Learner(const ModelConfig& config, const TrainOptions& options, PhaseClock* clock)
    : table_(parameter_table(config)), clipper_(options.clip) {
  const c10::Device device = open_device(options.device);
  const at::ScalarType compute = parse_compute_dtype(options.dtype, device);
  std::vector<at::Tensor> leaves;
  std::vector<OptimParam> for_muon, for_adamw;
  for (const ParameterSpec& spec : table_) {
    const at::Tensor initial = at::empty(spec.shape, at::TensorOptions(at::kFloat));
    init_parameter(spec, config, options.seed, initial);
    const at::Tensor master = initial.to(device);
    const at::ScalarType dtype = compute_dtype_of(spec, compute);
    leaves.push_back(dtype == at::kFloat ? master : master.to(dtype));
    masters_.push_back(master);
    gradients_.push_back(at::zeros_like(master));
    (is_muon(spec) ? for_muon : for_adamw)
        .push_back({spec.name, master, spec.block_rows, is_decayed(spec)});
  }
  model_ = std::make_unique<Decoder>(config, std::move(leaves));
  pass_ = std::make_unique<GradientPass>(*model_, parse_recompute(options.recompute), clock);

  MuonOptions muon;
  muon.momentum = options.momentum;
  muon.nesterov = options.nesterov;
  muon.weight_decay = options.weight_decay;
  muon.newton_schulz = newton_schulz_set(options.newton_schulz);
  muon.form = parse_newton_schulz_form(options.newton_schulz_form);
  muon.adjust = parse_adjust(options.adjust);
  muon.dtype = compute;
  muon.per_block = options.per_block;
  muon_ = std::make_unique<Muon>(std::move(for_muon), muon);
  adamw_ = std::make_unique<AdamW>(
      std::move(for_adamw),
      AdamWOptions{options.beta1, options.beta2, options.eps, options.weight_decay});
}

double Learner::accumulate(const at::Tensor& tokens, const std::optional<at::Tensor>& doc_start,
                           double weight) {
  return pass_->run(tokens, doc_start, weight, gradients_);
}

ClipResult Learner::step(double muon_rate, double adamw_rate) {
  const c10::NoGradGuard no_grad;
  const ClipResult result = clipper_.clip(gradients_);
  if (result.finite) {
    std::vector<at::Tensor> for_muon, for_adamw;
    for (size_t i = 0; i < table_.size(); ++i) {
      (is_muon(table_[i]) ? for_muon : for_adamw).push_back(gradients_[i]);
    }
    muon_->step(for_muon, muon_rate);
    adamw_->step(for_adamw, adamw_rate);
    refresh_copies();
  }
  for (at::Tensor& gradient : gradients_) gradient.zero_();
  return result;
}

void Learner::refresh_copies() {
  for (size_t i = 0; i < table_.size(); ++i) {
    const at::Tensor& leaf = model_->weights()[i];
    if (!leaf.is_same(masters_[i])) leaf.copy_(masters_[i]);
  }
}

std::vector<NamedTensor> Learner::parameters() const {
  std::vector<NamedTensor> out;
  for (size_t i = 0; i < table_.size(); ++i) {
    out.emplace_back(table_[i].name, masters_[i]);
  }
  return out;
}

std::vector<NamedTensor> Learner::optimizer_state() const {
  std::vector<NamedTensor> out;
  for (size_t i = 0; i < muon_->params().size(); ++i) {
    out.emplace_back("momentum." + muon_->params()[i].name, muon_->momentum()[i]);
  }
  for (size_t i = 0; i < adamw_->params().size(); ++i) {
    out.emplace_back("exp_avg." + adamw_->params()[i].name, adamw_->exp_avg()[i]);
    out.emplace_back("exp_avg_sq." + adamw_->params()[i].name, adamw_->exp_avg_sq()[i]);
  }
  return out;
}

void Learner::restore(const std::vector<at::Tensor>& parameters, const SafetensorsFile& optimizer,
                      int64_t adamw_steps) {
  const c10::NoGradGuard no_grad;
  const auto state = optimizer_state();
  for (const auto& [name, buffer] : state) {
    const at::Tensor saved = optimizer.tensor(name);
    if (saved.sizes() != buffer.sizes() || saved.scalar_type() != buffer.scalar_type()) {
      fail_input(optimizer.path().string(), ": the tensor ", quoted(name),
                 " has another shape or dtype than this run's; use the checkpoint's own config");
    }
  }
  for (const auto& [name, buffer] : state) buffer.copy_(optimizer.tensor(name));
  for (size_t i = 0; i < table_.size(); ++i) masters_[i].copy_(parameters[i]);
  adamw_->set_steps(adamw_steps);
  refresh_copies();
}

}  // namespace laplace
