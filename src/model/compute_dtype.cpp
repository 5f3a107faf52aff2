// See compute_dtype.h.
#include "model/compute_dtype.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <exception>
#include <string>

#include "base/error.h"

namespace laplace {

namespace {

// Only the CPU's part of LibTorch is linked (cmake/LibTorch.cmake says why). Where this one has
// none for GPUs, the first tensor on the device says so.
void load_backend(c10::Device device) {
  if (!device.is_cuda()) return;
  for (const char* library : {"libtorch_cuda.so", "libtorch_hip.so"}) {
    if (dlopen(library, RTLD_NOW | RTLD_GLOBAL) != nullptr) return;
  }
}

[[noreturn]] void fail_device(const std::string& name, const std::string& why) {
  fail_input("--device ", quoted(name), " is not a device that this build of LibTorch can use (",
             why.substr(0, why.find_first_of(".\n")), "); try cpu");
}

}  // namespace

c10::Device open_device(const std::string& name) {
  try {
    const c10::Device device(name);
    load_backend(device);
    // "meta" has tensors, but no numbers in them.
    (void)at::zeros({1}, at::TensorOptions().device(device)).item<float>();
    return device;
  } catch (const c10::Error& error) {
    fail_device(name, error.what_without_backtrace());
  } catch (const std::exception& error) {  // backends throw what they like
    fail_device(name, error.what());
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
