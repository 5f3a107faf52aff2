// Parts of Engine::open, for benchmarks and for the executors of other devices.
#pragma once

#include <memory>
#include <vector>

#include "serve/engine/cpu/cpu_model.h"
#include "serve/engine/engine.h"
#include "serve/engine/executor.h"

namespace laplace {

// kAuto: bfloat16 where the processor multiplies it, else float32.
cpu::WeightType weight_type(EngineDtype dtype, const cpu::Kernels& kernels);

// Sequences that the memory left now has room for, within options.memory_share.
int64_t slots_that_fit(const ModelConfig& config, const EngineOptions& options);

// An executor for each replica, threads and slots shared out. Says on the log how many sequences
// there are. Throws Error(kBadInput) when they do not fit.
std::vector<std::unique_ptr<Executor>> make_cpu_executors(std::shared_ptr<const CpuModel> model,
                                                          const EngineOptions& options);

// For any device of LibTorch: portable operators.
std::unique_ptr<Engine> open_torch_engine(const Path& directory, EngineModel model,
                                          const EngineOptions& options);

}  // namespace laplace
