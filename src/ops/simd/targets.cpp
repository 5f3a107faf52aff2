// See targets.h.
#include "ops/simd/targets.h"

#include <c10/util/Exception.h>
#include <hwy/highway.h>

#include <atomic>
#include <cstdlib>
#include <string_view>

namespace laplace::ops {

namespace {

struct Set {
  int64_t target;
  const char* name;
  bool bfloat16;  // whether products of bfloat16 are used, which Highway does not tell apart
};
constexpr Set kSets[] = {{HWY_AVX3, "avx512_bf16", true},
                         {HWY_AVX3, "avx512", false},
                         {HWY_AVX2, "avx2", false},
                         {HWY_STATIC_TARGET, "portable", false}};

bool machine_has_bfloat16() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

bool is_available(const Set& set) {
  const bool target =
      set.target == HWY_STATIC_TARGET || (hwy::SupportedTargets() & set.target) != 0;
  return target && (!set.bfloat16 || machine_has_bfloat16());
}

std::atomic<bool>& bfloat16_flag() {
  static std::atomic<bool> flag = machine_has_bfloat16();
  return flag;
}

// Runs before the first kernel is chosen.
bool apply_environment() {
  const char* const value = std::getenv("LAPLACE_CPU");
  if (value == nullptr || *value == '\0') return true;
  if (use_instruction_set(value)) return true;
  std::string names;
  for (const std::string& one : available_instruction_sets())
    names += (names.empty() ? "" : ", ") + one;
  TORCH_CHECK(false, "LAPLACE_CPU is \"", value, "\", but this processor runs: ", names,
              "; choose one of these, or leave it out");
}

std::atomic<bool>& fused_flag() {
  static std::atomic<bool> flag = [] {
    const char* const value = std::getenv("LAPLACE_KERNELS");
    const std::string_view form = value == nullptr ? "" : value;
    TORCH_CHECK(form.empty() || form == "fused" || form == "portable", "LAPLACE_KERNELS is \"",
                form, "\", but must be fused or portable; choose one of these, or leave it out");
    return form != "portable";
  }();
  return flag;
}

}  // namespace

std::vector<std::string> available_instruction_sets() {
  hwy::SetSupportedTargetsForTest(0);
  std::vector<std::string> names;
  for (const Set& set : kSets) {
    if (is_available(set)) names.emplace_back(set.name);
  }
  return names;
}

std::string instruction_set() {
  fused_kernels();  // has read the environment
  for (const Set& set : kSets) {
    if (is_available(set) && (!set.bfloat16 || bfloat16_flag())) return set.name;
  }
  return "portable";
}

bool use_instruction_set(const std::string& wanted) {
  hwy::SetSupportedTargetsForTest(0);
  for (const Set& set : kSets) {
    if (wanted != set.name || !is_available(set)) continue;
    hwy::SetSupportedTargetsForTest(set.target | HWY_STATIC_TARGET);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    bfloat16_flag() = set.bfloat16;
    return true;
  }
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  bfloat16_flag() = machine_has_bfloat16();
  return wanted.empty();
}

bool bfloat16_products() { return bfloat16_flag().load(std::memory_order_relaxed); }

bool fused_kernels() {
  static const bool environment [[maybe_unused]] = apply_environment();
  return fused_flag().load(std::memory_order_relaxed);
}

void set_fused_kernels(bool on) { fused_flag().store(on, std::memory_order_relaxed); }

}  // namespace laplace::ops
