// Which kernels this processor can run, and which are used.
#include "serve/engine/cpu/kernels.h"

#include <cstdlib>
#include <string>

#include "base/error.h"

namespace laplace::cpu {

std::vector<const Kernels*> available_kernels() {
  std::vector<const Kernels*> out = {&portable_kernels()};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    out.push_back(&avx2_kernels());
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      out.push_back(&avx512_kernels());
      if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni")) {
        out.push_back(&avx512_bf16_kernels());
      }
    }
  }
#endif
  return out;
}

const Kernels& chosen_kernels() {
  const auto available = available_kernels();
  const char* const wanted = std::getenv("LAPLACE_CPU");
  if (wanted == nullptr || *wanted == '\0') return *available.back();
  std::string names;
  for (const Kernels* kernels : available) {
    if (std::string_view(kernels->name) == wanted) return *kernels;
    names += (names.empty() ? "" : ", ") + std::string(kernels->name);
  }
  fail_input("LAPLACE_CPU is ", quoted(wanted), ", but this processor runs: ", names,
             "; unset it to take the last");
}

bool has_bfloat16_products(const Kernels& kernels) {
  return std::string_view(kernels.name) == "avx512_bf16";
}

}  // namespace laplace::cpu
