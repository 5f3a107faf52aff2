// See muon.h.
#include "optim/muon.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/strings.h"
#include "optim/muon_update.h"

namespace laplace {

namespace {

void check_options(const MuonOptions& options) {
  if (!(options.momentum >= 0 && options.momentum < 1)) {
    fail_input("Muon: momentum ", options.momentum, " must be at least 0 and below 1");
  }
  if (!(options.weight_decay >= 0)) {
    fail_input("Muon: weight_decay ", options.weight_decay, " must be at least 0");
  }
}

void check_blocks(const OptimParam& param) {
  int64_t begin = 0;
  for (const int64_t end : param.block_rows) {
    if (end <= begin) fail("Muon: the row blocks of ", param.name, " do not ascend");
    begin = end;
  }
  if (begin != param.tensor.size(0)) {
    fail("Muon: the row blocks of ", param.name, " end at row ", begin, " of ",
         param.tensor.size(0));
  }
}

at::TensorOptions workspace_options(const std::vector<OptimParam>& params, at::ScalarType dtype) {
  const at::TensorOptions options =
      params.empty() ? at::TensorOptions() : params[0].tensor.options();
  return options.dtype(dtype).requires_grad(false);
}

}  // namespace

MuonAdjust parse_adjust(std::string_view name) {
  static const std::array<std::string, 2> kNames = {"original", "match_rms_adamw"};
  if (name == kNames[0]) return MuonAdjust::kOriginal;
  if (name == kNames[1]) return MuonAdjust::kMatchRmsAdamw;
  fail_input("Muon: learning-rate adjustment ", quoted(name), " is not known",
             did_you_mean(name, kNames), "; use original or match_rms_adamw");
}

double adjustment(MuonAdjust adjust, int64_t rows, int64_t columns) {
  if (adjust == MuonAdjust::kOriginal)
    return std::sqrt(std::max(1.0, double(rows) / double(columns)));
  return 0.2 * std::sqrt(double(std::max(rows, columns)));
}

Muon::Muon(std::vector<OptimParam> params, const MuonOptions& options)
    : params_(std::move(params)),
      options_(options),
      newton_schulz_(options.newton_schulz, workspace_options(params_, options.dtype),
                     options.form) {
  check_options(options_);
  check_params(params_);
  const at::NoGradGuard no_grad;
  for (OptimParam& param : params_) {
    if (param.tensor.dim() != 2 || param.tensor.numel() == 0) {
      fail("Muon: ", param.name, " is no matrix but ", param.tensor.sizes());
    }
    if (!options_.per_block || param.block_rows.empty()) param.block_rows = {param.tensor.size(0)};
    check_blocks(param);
    momentum_.push_back(at::zeros_like(param.tensor));
    int64_t begin = 0;
    for (const int64_t end : param.block_rows) {
      newton_schulz_.reserve(end - begin, param.tensor.size(1));
      begin = end;
    }
  }
}

void Muon::step(std::span<const at::Tensor> gradients, double rate) {
  check_gradients(params_, gradients);
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < params_.size(); ++i) {
    int64_t begin = 0;
    for (const int64_t end : params_[i].block_rows) {
      const auto block = [&](const at::Tensor& whole) { return whole.slice(0, begin, end); };
      step_block(block(params_[i].tensor), block(momentum_[i]), block(gradients[i]), rate);
      begin = end;
    }
  }
}

void Muon::step_block(const at::Tensor& p, const at::Tensor& m, const at::Tensor& g, double rate) {
  const at::Tensor u = newton_schulz_.input(p.size(0), p.size(1));
  muon_momentum(m, g, options_.momentum, options_.nesterov, u);
  const at::Tensor o = newton_schulz_.run(u);
  const double f = adjustment(options_.adjust, p.size(0), p.size(1));
  muon_apply(p, o, 1 - rate * options_.weight_decay, rate * f);
}

}  // namespace laplace
