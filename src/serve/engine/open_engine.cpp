// Opening an engine: dtype, threads, weights, and how many sequences fit into memory.
#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/threads.h"
#include "serve/engine/cpu/cpu_executor.h"
#include "serve/engine/engine.h"
#include "serve/engine/open_engine.h"

namespace laplace {

cpu::WeightType weight_type(EngineDtype dtype, const cpu::Kernels& kernels) {
  switch (dtype) {
    case EngineDtype::kFloat32:
      return cpu::WeightType::kFloat32;
    case EngineDtype::kBfloat16:
      return cpu::WeightType::kBfloat16;
    case EngineDtype::kInt8:
      return cpu::WeightType::kInt8;
    case EngineDtype::kInt4:
      return cpu::WeightType::kInt4;
    case EngineDtype::kAuto:
      break;
  }
  return cpu::has_bfloat16_products(kernels) ? cpu::WeightType::kBfloat16
                                             : cpu::WeightType::kFloat32;
}

namespace {

void check_options(const EngineOptions& options) {
  if (options.replicas < 1)
    fail_input("replicas is ", options.replicas, ", but must be at least 1");
  if (options.slots < 0) fail_input("slots is ", options.slots, ", but must be 0 (auto) or more");
  if (options.slots > 0 && options.slots < options.replicas) {
    fail_input("there are fewer slots (", options.slots, ") than replicas (", options.replicas,
               "); give each at least one");
  }
  if (options.prefill_budget < 1) {
    fail_input("prefill_budget is ", options.prefill_budget, ", but must be at least 1 token");
  }
  if (options.prefill_stretch != 0 && options.prefill_stretch < 1) {
    fail_input("prefill_stretch is ", options.prefill_stretch,
               ", but must be at least 1, or 0 for no bound");
  }
}

}  // namespace

int64_t slots_that_fit(const ModelConfig& config, const EngineOptions& options) {
  const int64_t available = available_memory();
  if (available == 0) return std::max(options.slots, options.max_slots);  // not known: trust
  const auto memory = int64_t(double(available) * options.memory_share);
  const int64_t room = memory - options.replicas * CpuExecutor::workspace_bytes(config);
  return std::max<int64_t>(room / CpuExecutor::sequence_bytes(config), 0);
}

std::vector<std::unique_ptr<Executor>> make_cpu_executors(std::shared_ptr<const CpuModel> model,
                                                          const EngineOptions& options) {
  const ModelConfig& config = model->config();
  const int64_t fit = slots_that_fit(config, options);
  const int64_t slots = options.slots > 0 ? options.slots : std::min(fit, options.max_slots);
  if (slots < options.replicas && options.replicas <= fit) {
    fail_input(slots, " sequences at a time leave none for some of ", options.replicas,
               " replicas; take fewer replicas, or more slots");
  }
  if (slots > fit || slots < options.replicas) {
    fail_input(std::max<int64_t>(slots, options.replicas), " sequences of ",
               human_bytes(double(CpuExecutor::sequence_bytes(config))),
               " do not fit into memory beside the weights, only ", fit,
               "; take fewer slots or replicas, or a smaller dtype");
  }
  const int threads = options.threads > 0 ? options.threads : available_cores();
  const std::vector<int> all = allowed_cores();
  // Several replicas get cores of their own; one alone may move about.
  const bool pinned = options.replicas > 1 && threads <= int(all.size());
  std::vector<std::unique_ptr<Executor>> out;
  for (int r = 0; r < options.replicas; ++r) {
    const int first = threads * r / options.replicas, last = threads * (r + 1) / options.replicas;
    const int64_t share = slots * (r + 1) / options.replicas - slots * r / options.replicas;
    std::vector<int> cores;
    if (pinned) cores.assign(all.begin() + first, all.begin() + last);
    out.push_back(std::make_unique<CpuExecutor>(model, share, std::max(last - first, 1),
                                                options.poison, std::move(cores)));
  }
  if (!options.quiet) {
    log_info(slots, " sequences of ", human_bytes(double(config.state_bytes())),
             " of state at a time", slots < fit ? cat(" (memory has room for ", fit, ")") : "",
             ", weights of ", human_bytes(double(model->weight_bytes())), ", ",
             out.front()->description());
  }
  return out;
}

std::unique_ptr<Engine> Engine::open(const Path& directory, EngineModel model,
                                     const EngineOptions& options) {
  check_options(options);
  if (options.device != "cpu") return open_torch_engine(directory, std::move(model), options);
  const Stopwatch watch;
  const cpu::Kernels& kernels = cpu::chosen_kernels();
  const int threads = options.threads > 0 ? options.threads : available_cores();
  const auto source = open_weights(directory, model.config);
  const auto weights = std::make_shared<const CpuModel>(
      model.config, *source, weight_type(options.dtype, kernels), kernels, threads);
  log_debug("packed ", human_bytes(double(weights->weight_bytes())), " of weights in ",
            human_duration(watch.seconds()));
  auto executors = make_cpu_executors(weights, options);
  return std::make_unique<Engine>(std::move(model), std::move(executors), options);
}

}  // namespace laplace
