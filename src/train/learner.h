// The trained parameters and what changes them: float32 masters, copies in the compute dtype,
// gradients in float32, Muon for the matrices and AdamW for the rest.
//
//   micro-batches: a gradient pass over the compute copies, gradients added up in float32
//   step:          check and clip on the raw gradients -> Muon | AdamW on the masters -> new copies
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "model/decoder.h"
#include "model/gradient_pass.h"
#include "model/safetensors.h"
#include "optim/adamw.h"
#include "optim/clip.h"
#include "optim/muon.h"
#include "train/options.h"

namespace laplace {

// Not thread-safe; operators inside run on ATen's threads.
class Learner {
 public:
  // Parameters are initialised from options.seed. `clock`: see GradientPass.
  Learner(const ModelConfig& config, const TrainOptions& options, PhaseClock* clock = nullptr);

  const Decoder& model() const { return *model_; }

  // Adds the gradients of `weight` times the mean loss of tokens [B,T+1]; returns that mean loss.
  double accumulate(const at::Tensor& tokens, const std::optional<at::Tensor>& doc_start,
                    double weight);
  // One step of both optimisers by what was accumulated. A gradient that is not finite changes
  // nothing (result.finite is false). Either way the next accumulation starts from zero.
  ClipResult step(double muon_rate, double adamw_rate);

  // What a checkpoint holds: the masters under their names, and the optimisers' buffers as
  // "momentum.<name>", "exp_avg.<name>", "exp_avg_sq.<name>".
  std::vector<NamedTensor> parameters() const;
  std::vector<NamedTensor> optimizer_state() const;
  int64_t adamw_steps() const { return adamw_->steps(); }
  // Takes a checkpoint's values; throws Error(kBadInput) naming `file` when a tensor is missing or
  // has another shape.
  void restore(const std::vector<at::Tensor>& parameters, const SafetensorsFile& optimizer,
               int64_t adamw_steps);

 private:
  void refresh_copies();

  std::vector<ParameterSpec> table_;
  std::vector<at::Tensor> masters_;    // float32, one a parameter
  std::vector<at::Tensor> gradients_;  // float32, one a parameter
  std::unique_ptr<Decoder> model_;     // over the masters themselves, or copies of them
  std::unique_ptr<GradientPass> pass_;
  std::unique_ptr<Muon> muon_;
  std::unique_ptr<AdamW> adamw_;
  GradientClipper clipper_;
};

}  // namespace laplace
