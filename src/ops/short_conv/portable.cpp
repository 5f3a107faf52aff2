// short_conv in ATen operators only: k shifted multiply-adds over [window, x], each with a mask
// that is zero where a document began between the tap and the token.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <vector>

#include "ops/common.h"
#include "ops/short_conv/short_conv.h"

namespace laplace::ops {

namespace {

// masks[l] [B,T,1]: 1 where token t-l is in the same document as token t. Empty: no boundaries.
std::vector<at::Tensor> lag_masks(const OptionalTensor& doc_start, const at::Tensor& x, int64_t k,
                                  at::ScalarType dtype) {
  const OptionalTensor starts = doc_start_mask(doc_start, x, dtype);
  if (!starts) return {};
  const int64_t T = x.size(1);
  std::vector<at::Tensor> masks = {at::ones_like(*starts)};
  const at::Tensor inside = 1 - *starts;  // 0 where a document begins
  for (int64_t lag = 1; lag < k; ++lag) {
    const int64_t shift = lag - 1;  // the boundary in front of token t-(lag-1)
    const at::Tensor shifted =
        shift < T ? at::constant_pad_nd(inside.slice(1, 0, T - shift), {shift, 0}, 1)
                  : at::ones_like(inside);
    masks.push_back(masks.back() * shifted);
  }
  for (at::Tensor& mask : masks) mask = mask.unsqueeze(-1);
  return masks;
}

struct Taps {
  int64_t T, k;
  at::ScalarType dtype;           // of the sums
  at::Tensor past;                // [B,k+T,D]  the window, then x
  at::Tensor weight;              // [D,k]
  std::vector<at::Tensor> masks;  // by lag
  at::Tensor tap(int64_t j) const { return past.slice(1, j + 1, j + 1 + T); }  // x[t-(k-1)+j]
  at::Tensor times_mask(const at::Tensor& value, int64_t j) const {
    return masks.empty() ? value : value * masks[size_t(k - 1 - j)];
  }
};

Taps gather(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& window,
            const OptionalTensor& doc_start) {
  const auto dtype = sum_dtype(x.scalar_type());
  const int64_t k = weight.size(1);
  const at::Tensor before =
      window ? *window : at::zeros({x.size(0), k, x.size(2)}, x.options().dtype(dtype));
  return {x.size(1),
          k,
          dtype,
          at::cat({before, x.to(dtype)}, 1),
          weight.to(dtype),
          lag_masks(doc_start, x, k, dtype)};
}

at::Tensor convolve(const Taps& in) {
  at::Tensor sum;
  for (int64_t j = 0; j < in.k; ++j) {
    const at::Tensor term = in.times_mask(in.tap(j) * in.weight.select(1, j), j);
    sum = sum.defined() ? sum.add_(term) : term;
  }
  return sum;
}

// The mask of the window that is returned, [B,k,1]: row i is the input of lag k-1-i behind the last
// token.
at::Tensor window_mask(const Taps& in) {
  std::vector<at::Tensor> rows;
  for (int64_t i = 0; i < in.k; ++i)
    rows.push_back(in.masks[size_t(in.k - 1 - i)].slice(1, in.T - 1));
  return at::cat(rows, 1);
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> short_conv_forward_portable(const at::Tensor& x,
                                                               const at::Tensor& weight,
                                                               const OptionalTensor& window,
                                                               const OptionalTensor& doc_start) {
  const Taps in = gather(x, weight, window, doc_start);
  const at::Tensor y = at::silu(convolve(in)).to(x.scalar_type());
  const at::Tensor last = in.past.slice(1, in.T);
  return {y, in.masks.empty() ? last.clone() : last * window_mask(in)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> short_conv_backward_portable(
    const at::Tensor& grad_y, const OptionalTensor& grad_window_out, const at::Tensor& x,
    const at::Tensor& weight, const OptionalTensor& window, const OptionalTensor& doc_start) {
  const Taps in = gather(x, weight, window, doc_start);
  const at::Tensor sum = convolve(in);
  const at::Tensor s = at::sigmoid(sum);
  const at::Tensor d_sum = (sum * (1 - s)).add_(1).mul_(s).mul_(grad_y.to(in.dtype));

  at::Tensor d_past = at::zeros_like(in.past);
  std::vector<at::Tensor> d_weight;
  for (int64_t j = 0; j < in.k; ++j) {
    const at::Tensor masked = in.times_mask(d_sum, j);
    d_past.slice(1, j + 1, j + 1 + in.T).add_(masked * in.weight.select(1, j));
    d_weight.push_back((masked * in.tap(j)).sum(at::IntArrayRef{0, 1}));
  }
  if (grad_window_out) {
    d_past.slice(1, in.T).add_(in.masks.empty() ? *grad_window_out
                                                : *grad_window_out * window_mask(in));
  }
  return {d_past.slice(1, in.k).to(x.scalar_type()),
          at::stack(d_weight, 1).to(weight.scalar_type()), d_past.slice(1, 0, in.k).clone()};
}

}  // namespace laplace::ops

TORCH_LIBRARY_IMPL(laplace, CompositeExplicitAutograd, library) {
  library.impl("short_conv_forward", laplace::ops::short_conv_forward_portable);
  library.impl("short_conv_backward", laplace::ops::short_conv_backward_portable);
}
