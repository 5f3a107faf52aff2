// See compute_dtype.h.
#include "model/compute_dtype.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "base/error.h"

namespace laplace {

bool has_native_bfloat16(c10::Device device) {
  if (!device.is_cpu()) return true;
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") != 0;
#elif defined(__aarch64__)
  return (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0;
#else
  return false;
#endif
}

at::ScalarType parse_compute_dtype(std::string_view name, c10::Device device) {
  if (name == "auto") return has_native_bfloat16(device) ? at::kBFloat16 : at::kFloat;
  if (name == "float32") return at::kFloat;
  if (name == "bfloat16") return at::kBFloat16;
  fail_input("the dtype is ", quoted(name), ", but must be auto, float32 or bfloat16");
}

}  // namespace laplace
