// The slots: one allocation [slots][layers][window k*D + S H*dk*dv], float32, updated in place.
//
// Slots never move, and a slot is one contiguous block: to save, fork or restore a sequence is one
// copy. Not thread-safe for one slot; different slots may be used by different threads.
#pragma once

#include <cstdint>
#include <span>

#include "base/memory.h"
#include "model/config.h"

namespace laplace {

class StatePool {
 public:
  // `poison`: a slot that is released, and every slot at first, is filled with NaN, so that whoever
  // reads a state that is not his finds out.
  StatePool(const ModelConfig& config, int64_t slots, bool poison);

  int64_t slots() const { return slots_; }
  // Floats of one slot, and of one layer in it.
  int64_t slot_floats() const { return layers_ * layer_floats_; }
  int64_t layer_floats() const { return layer_floats_; }

  // [k,D], the oldest input first.
  float* window(int64_t slot, int64_t layer) {
    return memory_.as<float>() + (slot * layers_ + layer) * layer_floats_;
  }
  // [H,dk,dv]
  float* S(int64_t slot, int64_t layer) { return window(slot, layer) + window_floats_; }
  std::span<float> whole(int64_t slot) { return {window(slot, 0), size_t(slot_floats())}; }

  void zero(int64_t slot);
  void release(int64_t slot);

 private:
  int64_t slots_, layers_, window_floats_, layer_floats_;
  bool poison_;
  PageBuffer memory_;
};

}  // namespace laplace
