// short_conv on the CPU: the fused kernel over blocks of tokens.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include "ops/cpu.h"
#include "ops/short_conv/kernel.h"
#include "ops/short_conv/short_conv.h"

namespace laplace::ops {

namespace {

bool takes_kernel(const at::Tensor& x, const at::Tensor& weight) {
  return takes_fused(x) && weight.size(1) <= kConvMaxWidth;
}

// What both directions read, kept alive while the kernel runs.
struct Inputs {
  Inputs(const at::Tensor& x_in, const at::Tensor& weight_in, const OptionalTensor& window_in,
         const OptionalTensor& doc_start)
      : x(x_in.contiguous()), weight(as_float(weight_in.t())), starts(doc_start_bytes(doc_start)) {
    if (window_in) window = window_in->contiguous();
  }
  template <class X>
  ShortConvBlocks<X> blocks() const {
    ShortConvBlocks<X> a{};
    a.T = x.size(1);
    a.D = x.size(2);
    a.k = weight.size(0);
    a.x = read<X>(x);
    a.weight = read<float>(weight);
    if (window.defined()) a.window = read<float>(window);
    if (starts.defined()) a.doc_start = read<uint8_t>(starts);
    return a;
  }

  at::Tensor x, weight, starts, window;
};

// Calls body(sequence, first token, end, block) for every block of every sequence.
template <class Body>
void for_blocks(int64_t B, int64_t T, int64_t D, const Body& body) {
  const int64_t blocks = blocks_of(T, kConvBlockTokens);
  const int64_t grain = grain_of(D * std::min(T, kConvBlockTokens));
  at::parallel_for(0, B * blocks, grain, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t begin = i % blocks * kConvBlockTokens;
      body(i / blocks, begin, std::min(begin + kConvBlockTokens, T), i);
    }
  });
}

std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x, const at::Tensor& weight,
                                           const OptionalTensor& window,
                                           const OptionalTensor& doc_start) {
  if (!takes_kernel(x, weight)) return short_conv_forward_portable(x, weight, window, doc_start);
  const Inputs in(x, weight, window, doc_start);
  const int64_t B = x.size(0), T = x.size(1), D = x.size(2), k = weight.size(1);
  const at::Tensor y = at::empty({B, T, D}, x.options()),
                   window_out = at::empty({B, k, D}, x.options().dtype(at::kFloat));
  with_element(x.scalar_type(), [&]<class X>(X*) {
    ShortConvBlocks<X> a = in.blocks<X>();
    a.y = written<X>(y);
    a.window_out = written<float>(window_out);
    const auto kernel = short_conv_kernels<X>().forward;
    for_blocks(B, T, D,
               [&](int64_t b, int64_t begin, int64_t end, int64_t) { kernel(a, b, begin, end); });
  });
  return {y, window_out};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(
    const at::Tensor& grad_y, const OptionalTensor& grad_window_out, const at::Tensor& x,
    const at::Tensor& weight, const OptionalTensor& window, const OptionalTensor& doc_start) {
  if (!takes_kernel(x, weight)) {
    return short_conv_backward_portable(grad_y, grad_window_out, x, weight, window, doc_start);
  }
  const Inputs in(x, weight, window, doc_start);
  const at::Tensor dy = grad_y.to(x.scalar_type()).contiguous(),
                   d_window_out = grad_window_out ? grad_window_out->contiguous() : at::Tensor();
  const int64_t B = x.size(0), T = x.size(1), D = x.size(2), k = weight.size(1);
  const auto floats = x.options().dtype(at::kFloat);
  const at::Tensor dx = at::empty({B, T, D}, x.options()), d_window = at::empty({B, k, D}, floats),
                   shares = at::empty({B * blocks_of(T, kConvBlockTokens), k, D}, floats);
  with_element(x.scalar_type(), [&]<class X>(X*) {
    ShortConvBlocks<X> a = in.blocks<X>();
    a.dy = read<X>(dy);
    if (d_window_out.defined()) a.d_window_out = read<float>(d_window_out);
    a.dx = written<X>(dx);
    a.d_window = written<float>(d_window);
    const auto kernel = short_conv_kernels<X>().backward;
    for_blocks(B, T, D, [&](int64_t b, int64_t begin, int64_t end, int64_t block) {
      kernel(a, b, begin, end, written<float>(shares) + block * k * D);
    });
  });
  return {dx, shares.sum(0).t().to(weight.scalar_type()).contiguous(), d_window};
}

}  // namespace

}  // namespace laplace::ops

TORCH_LIBRARY_IMPL(laplace, CPU, library) {
  library.impl("short_conv_forward", laplace::ops::forward);
  library.impl("short_conv_backward", laplace::ops::backward);
}
