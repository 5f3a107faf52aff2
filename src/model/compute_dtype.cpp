// See compute_dtype.h.
#include "model/compute_dtype.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <ATen/ops/empty.h>

#include <exception>

#include "base/error.h"

namespace laplace {

c10::Device open_device(const std::string& name) {
  try {
    const c10::Device device(name);
    at::empty({1}, at::TensorOptions().device(device));
    return device;
  } catch (const std::exception&) {  // c10::Error, but backends throw what they like
    fail_input("--device ", quoted(name),
               " is not a device that this build of LibTorch can use; try cpu");
  }
}

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
