// See state_pool.h.
#include "serve/engine/state_pool.h"

#include <algorithm>
#include <limits>

namespace laplace {

StatePool::StatePool(const ModelConfig& config, int64_t slots, bool poison)
    : slots_(slots),
      layers_(config.num_hidden_layers),
      window_floats_(config.conv_kernel * config.hidden_size),
      layer_floats_(window_floats_ + config.num_heads * config.head_k_dim * config.head_v_dim),
      poison_(poison),
      memory_(size_t(slots * slot_floats()) * sizeof(float)) {
  for (int64_t slot = 0; slot < slots_; ++slot) release(slot);
}

void StatePool::zero(int64_t slot) { std::ranges::fill(whole(slot), 0.0F); }

void StatePool::release(int64_t slot) {
  if (poison_) std::ranges::fill(whole(slot), std::numeric_limits<float>::quiet_NaN());
}

}  // namespace laplace
