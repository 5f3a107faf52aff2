// AdamW against the golden steps in both forms, resumption, threads, decay flags.
#include "optim/adamw.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <utility>
#include <vector>

#include "optim/clip.h"
#include "optim/common.h"
#include "support/golden.h"

namespace laplace::testing {
namespace {

double tolerance(at::ScalarType dtype) { return dtype == at::kDouble ? 1e-13 : 1e-6; }

class AdamWGolden : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(AdamWGolden, ThreeSteps) {
  const GoldenFile file("adamw.safetensors");
  for (const std::string& name : file.cases()) {
    const at::Tensor p = file.tensor(name, "p0").to(GetParam());
    const at::Tensor rates = file.tensor(name, "lr");
    AdamW adamw({{"p", p, {}, true}},
                {file.number(name, "beta1"), file.number(name, "beta2"), file.number(name, "eps"),
                 file.number(name, "weight_decay")});
    for (int t = 1; t <= 3; ++t) {
      const std::vector<at::Tensor> g = {file.tensor(name, cat("g", t)).to(GetParam())};
      adamw.step(g, rates[t - 1].item<double>());
      EXPECT_LT(max_error(p, file.tensor(name, cat("p", t))), tolerance(GetParam())) << name << t;
      EXPECT_LT(max_error(adamw.exp_avg()[0], file.tensor(name, cat("m", t))),
                tolerance(GetParam()));
      EXPECT_LT(max_error(adamw.exp_avg_sq()[0], file.tensor(name, cat("v", t))),
                tolerance(GetParam()));
    }
  }
}

TEST_P(AdamWGolden, PortableFormAgrees) {
  const AdamWStep step{0.9, 0.95, 1e-8, 1 - 1e-4, 1e-3 / 0.19, 1 / std::sqrt(0.0975)};
  const at::Tensor g = random_tensor({50, 70}, 1, GetParam());
  std::vector<at::Tensor> one = {random_tensor({50, 70}, 2, GetParam()),
                                 random_tensor({50, 70}, 3, GetParam()),
                                 random_tensor({50, 70}, 4, GetParam()).abs()};
  std::vector<at::Tensor> two;
  for (const at::Tensor& x : one) two.push_back(x.clone());
  adamw_update_cpu(step, one[0], one[1], one[2], g);
  adamw_update_portable(step, two[0], two[1], two[2], g, at::empty_like(g));
  for (int i = 0; i < 3; ++i) EXPECT_LT(max_error(one[i], two[i]), tolerance(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(AdamW, AdamWGolden, ::testing::Values(at::kDouble, at::kFloat));

std::vector<at::Tensor> adamw_gradients(uint64_t step) {
  return {random_tensor({300, 301}, 10 + step), random_tensor({13}, 20 + step)};
}

std::vector<OptimParam> adamw_parameters() {
  return {{"w", random_tensor({300, 301}, 1), {}, true}, {"b", random_tensor({13}, 2), {}, false}};
}

TEST(AdamW, ContinuesBitExactlyFromSavedState) {
  AdamW whole(adamw_parameters(), {});
  for (uint64_t t = 0; t < 4; ++t) whole.step(adamw_gradients(t), 1e-2);

  AdamW first(adamw_parameters(), {});
  for (uint64_t t = 0; t < 2; ++t) first.step(adamw_gradients(t), 1e-2);
  std::vector<OptimParam> saved;
  for (const OptimParam& param : first.params()) {
    saved.push_back({param.name, param.tensor.clone(), {}, param.weight_decay});
  }
  AdamW second(std::move(saved), {});
  for (int i = 0; i < 2; ++i) {
    second.exp_avg()[i].copy_(first.exp_avg()[i]);
    second.exp_avg_sq()[i].copy_(first.exp_avg_sq()[i]);
  }
  second.set_steps(first.steps());
  for (uint64_t t = 2; t < 4; ++t) second.step(adamw_gradients(t), 1e-2);
  EXPECT_EQ(second.steps(), 4);
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(same_bits(second.params()[i].tensor, whole.params()[i].tensor));
    EXPECT_TRUE(same_bits(second.exp_avg_sq()[i], whole.exp_avg_sq()[i]));
  }
}

TEST(AdamW, SameBitsForAnyNumberOfThreadsAndShards) {
  const Threads one(1);
  AdamW expected(adamw_parameters(), {});
  expected.step(adamw_gradients(0), 1e-2);
  {
    const Threads three(3);
    AdamW adamw(adamw_parameters(), {});
    adamw.step(adamw_gradients(0), 1e-2);
    EXPECT_TRUE(same_bits(adamw.params()[0].tensor, expected.params()[0].tensor));
  }
  const at::Tensor w = adamw_parameters()[0].tensor;
  AdamW shard({{"w", w.slice(0, 100, 150), {}, true}}, {});
  shard.step(std::vector<at::Tensor>{adamw_gradients(0)[0].slice(0, 100, 150)}, 1e-2);
  EXPECT_TRUE(same_bits(w.slice(0, 100, 150), expected.params()[0].tensor.slice(0, 100, 150)));
}

TEST(AdamW, StepAllocatesNothingLarge) {
  AdamW adamw({{"w", random_tensor({1100, 520}, 1), {}, true}}, {});
  const std::vector<at::Tensor> g = {random_tensor({1100, 520}, 2)};
  GradientClipper clipper(1);
  const LargeAllocations large;
  EXPECT_TRUE(clipper.clip(g).finite);
  adamw.step(g, 1e-2);
  EXPECT_EQ(large.count(), 0);
}

TEST(AdamW, ZeroGradientsDecayOnlyWhereAsked) {
  AdamW adamw(adamw_parameters(), {.weight_decay = 0.5});
  std::vector<at::Tensor> zeros;
  for (const at::Tensor& g : adamw_gradients(0)) zeros.push_back(at::zeros_like(g));
  adamw.step(zeros, 0.1);
  EXPECT_LT(max_error(adamw.params()[0].tensor, adamw_parameters()[0].tensor.mul(0.95)), 1e-6);
  EXPECT_TRUE(same_bits(adamw.params()[1].tensor, adamw_parameters()[1].tensor));
}

TEST(AdamW, GradientsOfAnyStride) {
  AdamW expected(adamw_parameters(), {});
  expected.step(adamw_gradients(0), 1e-2);
  AdamW adamw(adamw_parameters(), {});
  std::vector<at::Tensor> g = adamw_gradients(0);
  g[0] = g[0].t().contiguous().t();
  adamw.step(g, 1e-2);
  EXPECT_LT(max_error(adamw.params()[0].tensor, expected.params()[0].tensor), 1e-6);
}

TEST(AdamW, RefusesWhatDoesNotFit) {
  AdamW adamw(adamw_parameters(), {});
  std::vector<at::Tensor> g = adamw_gradients(0);
  g[1] = random_tensor({14}, 1);
  expect_error(ErrorKind::kFailure, "gradient of b", [&] { adamw.step(g, 1e-2); });
  EXPECT_EQ(adamw.steps(), 0);
  expect_error(ErrorKind::kBadInput, "betas",
               [] { AdamW bad(adamw_parameters(), {.beta2 = 1.0}); });
  expect_error(ErrorKind::kBadInput, "eps", [] { AdamW bad(adamw_parameters(), {.eps = 0}); });
}

}  // namespace
}  // namespace laplace::testing
