// See targets.h.
#include "ops/simd/targets.h"

#include <hwy/highway.h>

#include <atomic>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace laplace::ops {

namespace {

constexpr std::pair<int64_t, const char*> kSets[] = {
    {HWY_AVX3, "avx512"}, {HWY_AVX2, "avx2"}, {HWY_STATIC_TARGET, "baseline"}};

bool is_available(int64_t target) {
  return target == HWY_STATIC_TARGET || (hwy::SupportedTargets() & target) != 0;
}

// Runs before the first kernel is chosen. An unknown name, or a set this machine lacks, falls to
// the best one. The serving engine's finer names are understood.
bool apply_environment() {
  const char* const value = std::getenv("LAPLACE_CPU");
  if (value == nullptr) return true;
  const std::string_view name = value;
  if (name.substr(0, 6) == "avx512") return use_instruction_set("avx512");
  return use_instruction_set(name == "portable" ? "baseline" : std::string(name));
}

std::atomic<bool>& fused_flag() {
  static std::atomic<bool> flag = [] {
    const char* const value = std::getenv("LAPLACE_KERNELS");
    return value == nullptr || std::string_view(value) != "portable";
  }();
  return flag;
}

}  // namespace

std::vector<std::string> available_instruction_sets() {
  hwy::SetSupportedTargetsForTest(0);
  std::vector<std::string> names;
  for (const auto& [target, name] : kSets) {
    if (is_available(target)) names.emplace_back(name);
  }
  return names;
}

std::string instruction_set() {
  fused_kernels();  // has read the environment
  for (const auto& [target, name] : kSets) {
    if (is_available(target)) return name;
  }
  return "baseline";
}

bool use_instruction_set(const std::string& wanted) {
  hwy::SetSupportedTargetsForTest(0);
  for (const auto& [target, name] : kSets) {
    if (wanted != name || !is_available(target)) continue;
    hwy::SetSupportedTargetsForTest(target | HWY_STATIC_TARGET);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    return true;
  }
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return wanted.empty();
}

bool fused_kernels() {
  static const bool environment [[maybe_unused]] = apply_environment();
  return fused_flag().load(std::memory_order_relaxed);
}

void set_fused_kernels(bool on) { fused_flag().store(on, std::memory_order_relaxed); }

}  // namespace laplace::ops
