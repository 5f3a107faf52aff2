// The configuration of a model: config.json, and the sizes that follow from it.
//
// The architecture these fields describe, per layer and head: S_t = λ S_{t-1} + k_t v_tᵀ with S of
// [head_k_dim, head_v_dim], λ_h = exp(log_decays()[h]); see docs for the whole layer.
// A plain value: copy it freely, read it from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/json.h"

namespace laplace {

struct ModelConfig {
  int64_t vocab_size = 0;         // V, with padding
  int64_t hidden_size = 0;        // D
  int64_t num_hidden_layers = 0;  // L
  int64_t num_heads = 0;          // H
  int64_t head_k_dim = 0;         // dk
  int64_t head_v_dim = 0;         // dv
  int64_t intermediate_size = 0;  // F
  int64_t conv_kernel = 4;      // k, taps of the causal convolution, the current token's among them
  int64_t chunk_size = 128;     // C, tokens
  double half_life_min = 1;     // tokens, of head 0
  double half_life_max = 2048;  // tokens, of head H-1
  int64_t num_norm_tiers = 4;   // groups of neighbouring heads that share a weight of the head norm
  double norm_eps = 1e-5;
  int64_t bos_token_id = -1;  // -1: none
  int64_t eos_token_id = -1;
  std::string torch_dtype = "float32";  // or "bfloat16": what the weights are stored in

  // Reads config.json; `path` is the file or the model directory that holds it.
  static ModelConfig load(const Path& path);
  // Throws Error(kBadInput) that names `source`, the field and the remedy for: a missing or unknown
  // field (what Hugging Face writes about itself is passed over), a value out of range, heads that
  // do not divide into tiers, half_life_min above half_life_max, token ids outside the vocabulary,
  // a model of more than 2^43 parameters or 1 TB of state. So no size below can overflow.
  static ModelConfig from_json(const Json& json, const std::string& source);
  // Every field, with model_type and architectures, as config.json has them.
  Json to_json() const;

  bool operator==(const ModelConfig&) const = default;

  // H·dv, the width of v, g and o.
  int64_t value_width() const { return num_heads * head_v_dim; }
  // H·(2dk + 2dv), rows of the fused projection.
  int64_t qkvg_rows() const { return num_heads * 2 * (head_k_dim + head_v_dim); }
  int64_t tier_of_head(int64_t head) const { return head * num_norm_tiers / num_heads; }

  // T_h = T_min (T_max / T_min)^(h / (H-1)) in tokens; one head alone has T_min.
  std::vector<double> half_lives() const;
  // γ_h = -ln 2 / T_h, computed in float64 and rounded once to float32. Never store these in
  // bfloat16: all half-lives above some 350 tokens would become "never forget".
  std::vector<float> log_decays() const;

  // Numbers in the matrices that Muon trains, in everything else, and together.
  int64_t muon_parameters() const;
  int64_t adamw_parameters() const;
  int64_t num_parameters() const { return muon_parameters() + adamw_parameters(); }

  // float32 bytes of one sequence's state over all layers: S [H,dk,dv] and the window [k,D].
  int64_t state_bytes() const;
  // bfloat16 bytes of the keys and values that a transformer of the same D and L keeps:
  // 2·L·D·tokens·2.
  int64_t kv_cache_bytes(int64_t tokens) const;
};

}  // namespace laplace
