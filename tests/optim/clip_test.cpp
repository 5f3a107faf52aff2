// The global norm and clipping: golden cases, equal bits for any threads and shards, NaN.
#include "optim/clip.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "optim/common.h"
#include "support/golden.h"

namespace laplace::testing {
namespace {

class ClipGolden : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(ClipGolden, NormAndGradients) {
  const double tolerance = GetParam() == at::kDouble ? 1e-13 : 1e-6;
  const GoldenFile file("clip.safetensors");
  for (const std::string& name : file.cases()) {
    std::vector<at::Tensor> gradients;
    for (int i = 0; i < 4; ++i) gradients.push_back(file.tensor(name, cat("g", i)).to(GetParam()));
    GradientClipper clipper(file.number(name, "max_norm"));
    const ClipResult result = clipper.clip(gradients);
    EXPECT_TRUE(result.finite) << name;
    const double norm = file.number(name, "norm");
    EXPECT_NEAR(result.norm, norm, 1e-13 * norm) << name;
    for (int i = 0; i < 4; ++i) {
      EXPECT_LT(max_error(gradients[i], file.tensor(name, cat("clipped", i))), tolerance)
          << name << " " << i;
      if (result.scale == 1) {
        EXPECT_TRUE(same_bits(gradients[i], file.tensor(name, cat("g", i)).to(GetParam())));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Clip, ClipGolden, ::testing::Values(at::kDouble, at::kFloat));

TEST(Clip, SameBitsForAnyNumberOfThreads) {
  const std::vector<at::Tensor> gradients = {random_tensor({700, 301}, 1), random_tensor({9001}, 2),
                                             random_tensor({3, 70001}, 3)};
  GradientClipper clipper(1);
  const Threads one(1);
  const double expected = clipper.norm(gradients);
  for (int count = 2; count <= 4; ++count) {
    const Threads more(count);
    EXPECT_EQ(clipper.norm(gradients), expected) << count << " threads";
  }
}

// What a rank with a shard of the rows computes must add up to the same: row sums are the unit.
TEST(Clip, RowsAreSummedOnTheirOwn) {
  const at::Tensor whole = random_tensor({37, 133}, 4);
  SquareSummer summer;
  double total = 0;
  for (int64_t row = 0; row < 37; ++row) total += summer.sum(whole.slice(0, row, row + 1));
  EXPECT_EQ(summer.sum(whole), total);
  const at::Tensor vector = random_tensor({37}, 5);
  total = 0;
  for (int64_t row = 0; row < 37; ++row) total += summer.sum(vector.slice(0, row, row + 1));
  EXPECT_EQ(summer.sum(vector), total);
}

TEST(Clip, NonFiniteGradientsAreReportedAndLeftAlone) {
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    std::vector<at::Tensor> gradients = {random_tensor({40, 50}, 6).mul(100),
                                         random_tensor({7}, 7)};
    gradients[1][3] = bad;
    const at::Tensor before = gradients[0].clone();
    const ClipResult result = GradientClipper(0.5).clip(gradients);
    EXPECT_FALSE(result.finite);
    EXPECT_FALSE(std::isfinite(result.norm));
    EXPECT_TRUE(same_bits(gradients[0], before));
  }
}

TEST(Clip, ShapesAndDtypes) {
  SquareSummer summer;
  EXPECT_EQ(summer.sum(at::full({}, 3.0, at::TensorOptions(at::kFloat))), 9);
  EXPECT_EQ(summer.sum(at::zeros({0, 5})), 0);
  EXPECT_EQ(summer.sum(at::full({2, 3, 5}, 2.0, at::TensorOptions(at::kBFloat16))), 120);
  const at::Tensor x = random_tensor({19, 23}, 8);
  EXPECT_EQ(summer.sum(x.t()), summer.sum(x.t().contiguous()));
  expect_error(ErrorKind::kFailure, "Long",
               [&] { summer.sum(at::zeros({2}, at::TensorOptions(at::kLong))); });
}

TEST(Clip, ZeroMeasuresOnlyAndNegativeIsRefused) {
  std::vector<at::Tensor> gradients = {at::full({4}, 10.0, at::TensorOptions(at::kFloat))};
  const ClipResult result = GradientClipper(0).clip(gradients);
  EXPECT_EQ(result.norm, 20);
  EXPECT_EQ(result.scale, 1);
  expect_error(ErrorKind::kBadInput, "max_norm", [] { GradientClipper clipper(-1); });
}

}  // namespace
}  // namespace laplace::testing
