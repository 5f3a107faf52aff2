// The gradient pass: recomputation and threads change no bit, weights and micro-batches add up, and
// it gives what autograd gives in every dtype (decoder_test.cpp has the golden vectors).
#include "model/gradient_pass.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "support/golden.h"

namespace laplace {
namespace {

using laplace::testing::golden_path;
using laplace::testing::rms_error;

using Tensors = std::vector<at::Tensor>;

Decoder open_tiny(at::ScalarType dtype) {
  return Decoder::open(golden_path("tiny"), ModelConfig::load(golden_path("tiny")), dtype,
                       at::kCPU);
}

Tensors zeros_for(const Decoder& model) {
  const auto dtype = model.compute_dtype() == at::kDouble ? at::kDouble : at::kFloat;
  Tensors out;
  for (const at::Tensor& w : model.weights()) out.push_back(at::zeros(w.sizes(), dtype));
  return out;
}

struct Batch {
  at::Tensor tokens, doc_start;
};

Batch random_batch(const Decoder& model, int64_t B, int64_t T) {
  at::manual_seed(7);
  return {at::randint(model.config().vocab_size, {B, T + 1}, at::kLong), at::rand({B, T}).lt(0.05)};
}

Tensors gradients(const Decoder& model, const Batch& batch, Recompute recompute,
                  double weight = 1) {
  Tensors out = zeros_for(model);
  GradientPass(model, recompute).run(batch.tokens, batch.doc_start, weight, out);
  return out;
}

class GradientPassTest : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(GradientPassTest, RecomputationAndThreadsChangeNoBit) {
  const Decoder model = open_tiny(GetParam());
  const Batch batch = random_batch(model, 3, 150);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const Tensors kept = gradients(model, batch, Recompute::kNone);
  const Tensors recomputed = gradients(model, batch, Recompute::kLayer);
  at::set_num_threads(2);
  const Tensors with_two = gradients(model, batch, Recompute::kAuto);
  at::set_num_threads(threads);
  for (size_t i = 0; i < kept.size(); ++i) {
    EXPECT_TRUE(kept[i].equal(recomputed[i])) << i;
    EXPECT_LT(rms_error(with_two[i], kept[i].to(at::kDouble)), 1e-6) << i;
  }
}

TEST_P(GradientPassTest, AgreesWithAutograd) {
  Decoder model = open_tiny(GetParam());
  const Batch batch = random_batch(model, 2, 77);
  const Tensors own = gradients(model, batch, Recompute::kLayer, 0.25);
  for (const at::Tensor& w : model.weights()) w.requires_grad_();
  (model.loss(batch.tokens, batch.doc_start) * 0.25).backward();
  const double tolerance = GetParam() == at::kDouble  ? 1e-12
                           : GetParam() == at::kFloat ? 1e-5
                                                      : 2e-2;
  for (size_t i = 0; i < own.size(); ++i) {
    EXPECT_LT(rms_error(own[i], model.weights()[i].grad().to(at::kDouble)), tolerance) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, GradientPassTest,
                         ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(GradientPassTest, UnknownRecomputationIsRefused) {
  EXPECT_THROW(parse_recompute("some"), Error);
}

}  // namespace
}  // namespace laplace
