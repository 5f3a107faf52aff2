// See muon_update.h. CPU tensors take one pass; anything else goes through ATen operators.
#include "optim/muon_update.h"

#include <ATen/Parallel.h>
#include <ATen/ops/lerp.h>
#include <c10/util/BFloat16.h>

#include "optim/param.h"

namespace laplace {

namespace {

template <class T, class U>
void momentum_range(int64_t count, T* __restrict m, const T* __restrict g, T weight, bool nesterov,
                    U* __restrict update) {
  const T ahead = nesterov ? weight : T(0);  // u = m + 0 (g - m) without Nesterov
  for (int64_t i = 0; i < count; ++i) {
    m[i] = m[i] + weight * (g[i] - m[i]);
    update[i] = U(m[i] + ahead * (g[i] - m[i]));
  }
}

template <class T, class U>
void apply_range(int64_t count, T* __restrict p, const U* __restrict o, T keep, T step) {
  for (int64_t i = 0; i < count; ++i) p[i] = keep * p[i] - step * static_cast<T>(o[i]);
}

// Calls body(T{}), T the element type of a master (float, double) or an update (also BFloat16).
template <class Body>
void with_master_type(const at::Tensor& tensor, const Body& body) {
  if (tensor.scalar_type() == at::kDouble) {
    body(double{});
  } else {
    body(float{});
  }
}
template <class Body>
void with_update_type(const at::Tensor& tensor, const Body& body) {
  if (tensor.scalar_type() == at::kBFloat16) {
    body(c10::BFloat16{});
  } else {
    with_master_type(tensor, body);
  }
}

bool one_pass(const at::Tensor& x, const at::Tensor& y) {
  return x.is_cpu() && y.is_cpu() && x.is_contiguous() && y.is_contiguous();
}

}  // namespace

void muon_momentum(const at::Tensor& m, const at::Tensor& g, double momentum, bool nesterov,
                   const at::Tensor& update) {
  if (!one_pass(m, g) || !one_pass(m, update)) {
    m.lerp_(g, 1 - momentum);
    update.copy_(nesterov ? at::lerp(m, g, 1 - momentum) : m);
    return;
  }
  with_master_type(m, [&](auto master) {
    with_update_type(update, [&](auto updated) {
      using T = decltype(master);
      using U = decltype(updated);
      T* const m_data = m.mutable_data_ptr<T>();
      const T* const g_data = g.const_data_ptr<T>();
      U* const u_data = update.mutable_data_ptr<U>();
      at::parallel_for(0, m.numel(), kElementGrain, [&](int64_t begin, int64_t end) {
        momentum_range(end - begin, m_data + begin, g_data + begin, T(1 - momentum), nesterov,
                       u_data + begin);
      });
    });
  });
}

void muon_apply(const at::Tensor& p, const at::Tensor& o, double keep, double step) {
  if (!one_pass(p, o)) {
    p.mul_(keep).add_(o, -step);
    return;
  }
  with_master_type(p, [&](auto master) {
    with_update_type(o, [&](auto updated) {
      using T = decltype(master);
      using U = decltype(updated);
      T* const p_data = p.mutable_data_ptr<T>();
      const U* const o_data = o.const_data_ptr<U>();
      at::parallel_for(0, p.numel(), kElementGrain, [&](int64_t begin, int64_t end) {
        apply_range(end - begin, p_data + begin, o_data + begin, T(keep), T(step));
      });
    });
  });
}

}  // namespace laplace
