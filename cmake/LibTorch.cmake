# LibTorch: defines laplace_torch, from the torch wheel in .venv or from LAPLACE_TORCH (of
# cmake or of the environment: a directory with include/ and lib/).
#
# Not by the wheel's own TorchConfig.cmake: of a CUDA build, which is what pip installs where nobody
# laid a CPU build at its hand, that one refuses to configure without CUDA's compiler. We need neither
# that nor CUDA's headers: only the CPU's libraries are linked, and model/compute_dtype.cpp loads
# libtorch_cuda.so when somebody asks for such a device.
if(NOT LAPLACE_TORCH)
  set(LAPLACE_TORCH $ENV{LAPLACE_TORCH})
endif()
if(NOT LAPLACE_TORCH)
  file(GLOB LAPLACE_TORCH ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
endif()
list(LENGTH LAPLACE_TORCH count)
if(NOT count EQUAL 1)
  message(FATAL_ERROR "There must be one LibTorch, and here are ${count} (${LAPLACE_TORCH}): run "
    "./dev setup, which installs torch into .venv, or pass -DLAPLACE_TORCH=DIR with DIR/include and DIR/lib")
endif()
foreach(file include/ATen/ATen.h lib/libc10.so lib/libtorch_cpu.so)
  if(NOT EXISTS ${LAPLACE_TORCH}/${file})
    message(FATAL_ERROR "${LAPLACE_TORCH} is no LibTorch: it has no ${file}")
  endif()
endforeach()

# As a system include, so that its headers raise no warnings here. With OpenMP, and the wheel's own
# library of it where it brings one: at::parallel_for is a plain loop without.
add_library(laplace_torch INTERFACE)
target_include_directories(laplace_torch SYSTEM INTERFACE ${LAPLACE_TORCH}/include
  ${LAPLACE_TORCH}/include/torch/csrc/api/include)
target_link_libraries(laplace_torch INTERFACE ${LAPLACE_TORCH}/lib/libtorch_cpu.so
  ${LAPLACE_TORCH}/lib/libc10.so)
# What libtorch_cpu.so itself needs (of a CUDA build libcudart) it finds by its own rpath.
target_link_options(laplace_torch INTERFACE -Wl,--allow-shlib-undefined)
target_compile_options(laplace_torch INTERFACE -fopenmp)
find_library(LAPLACE_OPENMP NAMES libgomp.so.1 libgomp.so HINTS ${LAPLACE_TORCH}/lib NO_DEFAULT_PATH)
if(LAPLACE_OPENMP)
  target_link_libraries(laplace_torch INTERFACE ${LAPLACE_OPENMP})
else()
  target_link_options(laplace_torch INTERFACE -fopenmp)
endif()
