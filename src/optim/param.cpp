// See param.h.
#include "optim/param.h"

#include "base/error.h"

namespace laplace {

void check_params(std::span<const OptimParam> params) {
  for (const OptimParam& param : params) {
    const at::Tensor& tensor = param.tensor;
    if (!tensor.defined()) fail("optimiser: parameter ", param.name, " has no tensor");
    if (tensor.scalar_type() != at::kFloat && tensor.scalar_type() != at::kDouble) {
      fail("optimiser: parameter ", param.name, " is ", tensor.scalar_type(),
           "; master copies are float32");
    }
    if (!tensor.is_contiguous()) fail("optimiser: parameter ", param.name, " is not contiguous");
  }
}

void check_gradients(std::span<const OptimParam> params, std::span<const at::Tensor> gradients) {
  if (params.size() != gradients.size()) {
    fail("optimiser: ", gradients.size(), " gradients for ", params.size(), " parameters");
  }
  for (size_t i = 0; i < params.size(); ++i) {
    const at::Tensor& tensor = params[i].tensor;
    const at::Tensor& gradient = gradients[i];
    if (!gradient.defined()) fail("optimiser: ", params[i].name, " has no gradient");
    if (gradient.sizes() != tensor.sizes() || gradient.scalar_type() != tensor.scalar_type() ||
        gradient.device() != tensor.device()) {
      fail("optimiser: the gradient of ", params[i].name, " is ", gradient.scalar_type(),
           gradient.sizes(), " on ", gradient.device(), ", the parameter ", tensor.scalar_type(),
           tensor.sizes(), " on ", tensor.device());
    }
  }
}

}  // namespace laplace
