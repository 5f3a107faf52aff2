// Muon: momentum, orthogonalised. With torch.optim.Muon's semantics.
//
//   m = μ m + (1 - μ) g       u = nesterov ? μ m + (1 - μ) g : m
//   p = (1 - lr wd) p - lr f NS(u)                        f depends on the matrix' shape
//
// A step goes block by block through three phases: the momentum of rows, the orthogonalisation of a
// whole matrix, the application to rows (muon_update.h, newton_schulz.h).
//
// Sources: Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024); Liu et
// al., "Muon is Scalable for LLM Training" (arXiv 2502.16982) for match_rms_adamw.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "optim/newton_schulz.h"
#include "optim/param.h"

namespace laplace {

// How the rate is adjusted to a matrix [A, B].
enum class MuonAdjust {
  kOriginal,       // √max(1, A/B)
  kMatchRmsAdamw,  // 0.2 √max(A, B): the update's RMS is that of AdamW
};

// "original" or "match_rms_adamw"; throws Error(kBadInput) for any other name.
MuonAdjust parse_adjust(std::string_view name);
double adjustment(MuonAdjust adjust, int64_t rows, int64_t columns);

struct MuonOptions {
  double momentum = 0.95;
  bool nesterov = true;
  double weight_decay = 0.1;  // takes the rate without f
  NewtonSchulzCoefficients newton_schulz = newton_schulz_set("simple");
  MuonAdjust adjust = MuonAdjust::kMatchRmsAdamw;
  at::ScalarType dtype = at::kBFloat16;  // of the orthogonalisation; float32 where bf16 is slow
  NewtonSchulzForm form = NewtonSchulzForm::kDirect;
  bool per_block = false;  // each row block of a fused matrix as a matrix of its own, f included
};

// One thread at a time. Checkpoints save and fill momentum().
class Muon {
 public:
  // Matrices only, all on one device. Throws Error(kBadInput) for options that make no sense.
  Muon(std::vector<OptimParam> params, const MuonOptions& options);

  void step(std::span<const at::Tensor> gradients, double rate);

  std::span<const OptimParam> params() const { return params_; }
  std::span<const at::Tensor> momentum() const { return momentum_; }  // one a parameter

 private:
  void step_block(const at::Tensor& p, const at::Tensor& m, const at::Tensor& g, double rate);

  std::vector<OptimParam> params_;
  MuonOptions options_;
  std::vector<at::Tensor> momentum_;
  NewtonSchulz newton_schulz_;
};

}  // namespace laplace
