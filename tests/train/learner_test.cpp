// The learner: micro-batches add up to the batch, and a step whose gradient is not finite changes
// nothing.
#include "train/learner.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "ops/caching_allocator.h"
#include "ops/simd/targets.h"
#include "train_support.h"

namespace laplace {
namespace {

ModelConfig tiny_config() {
  return ModelConfig::from_json(parse_json(testing::kTinyConfig, "tiny"), "tiny");
}

TrainOptions float32_options() {
  TrainOptions options;
  options.dtype = "float32";
  return options;
}

std::vector<at::Tensor> copies(const std::vector<NamedTensor>& tensors) {
  std::vector<at::Tensor> out;
  for (const auto& [name, tensor] : tensors) out.push_back(tensor.clone());
  return out;
}

TEST(Learner, MicroBatchesAddUpToTheBatch) {
  at::manual_seed(1);
  const at::Tensor tokens = at::randint(320, {4, 33}, at::kLong);
  Learner whole(tiny_config(), float32_options()), parts(tiny_config(), float32_options());
  const double loss = whole.accumulate(tokens, {}, 1);
  double sum = 0;
  for (int64_t row = 0; row < 4; ++row)
    sum += 0.25 * parts.accumulate(tokens.slice(0, row, row + 1), {}, 0.25);
  EXPECT_NEAR(loss, sum, 1e-6 * loss);
  const double norm = whole.step(0.01, 0.01).norm;
  EXPECT_NEAR(parts.step(0.01, 0.01).norm / norm, 1, 1e-4);
}

TEST(Learner, StepThatIsNotFiniteChangesNothing) {
  at::manual_seed(2);
  const at::Tensor tokens = at::randint(320, {2, 17}, at::kLong);
  Learner learner(tiny_config(), float32_options());
  learner.accumulate(tokens, {}, 1);
  ASSERT_TRUE(learner.step(0.01, 0.01).finite);
  const auto parameters = copies(learner.parameters()), state = copies(learner.optimizer_state());
  learner.accumulate(tokens, {}, std::nan(""));
  EXPECT_FALSE(learner.step(0.01, 0.01).finite);
  EXPECT_EQ(learner.adamw_steps(), 1);
  const auto parameters_after = learner.parameters(), state_after = learner.optimizer_state();
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(parameters[i].equal(parameters_after[i].second)) << parameters_after[i].first;
  }
  for (size_t i = 0; i < state.size(); ++i) {
    EXPECT_TRUE(state[i].equal(state_after[i].second)) << state_after[i].first;
  }
  learner.accumulate(tokens, {}, 1);
  EXPECT_TRUE(learner.step(0.01, 0.01).finite);
}

TEST(Learner, BfloatCopiesFollowTheMasters) {
  TrainOptions options = float32_options();
  options.dtype = "bfloat16";
  Learner learner(tiny_config(), options);
  at::manual_seed(3);
  learner.accumulate(at::randint(320, {2, 17}, at::kLong), {}, 1);
  ASSERT_TRUE(learner.step(0.05, 0.05).finite);
  const auto masters = learner.parameters();
  for (size_t i = 0; i < masters.size(); ++i) {
    EXPECT_EQ(masters[i].second.scalar_type(), at::kFloat);
    const at::Tensor leaf = learner.model().weights()[i].detach();
    EXPECT_TRUE(leaf.equal(masters[i].second.to(leaf.scalar_type()))) << masters[i].first;
  }
}

// The losses of `steps` steps on the same random batch.
std::vector<double> losses_of(Learner& learner, const at::Tensor& tokens, int steps) {
  std::vector<double> losses;
  for (int i = 0; i < steps; ++i) {
    losses.push_back(learner.accumulate(tokens, {}, 1));
    learner.step(0.01, 0.01);
  }
  return losses;
}

TEST(Learner, FusedAndPortableOperatorsTrainTheSameModel) {
  at::manual_seed(4);
  const at::Tensor tokens = at::randint(320, {4, 65}, at::kLong);
  for (const std::string dtype : {"float32", "bfloat16"}) {
    TrainOptions options = float32_options();
    options.dtype = dtype;
    ops::set_fused_kernels(false);
    Learner portable(tiny_config(), options);
    const auto want = losses_of(portable, tokens, 20);
    ops::set_fused_kernels(true);
    Learner fused(tiny_config(), options);
    const auto got = losses_of(fused, tokens, 20);
    EXPECT_LT(got.back(), got.front() - 0.5) << "it learns nothing";
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(got[i] / want[i], 1, dtype == "float32" ? 1e-3 : 2e-2) << dtype << " step " << i;
    }
  }
}

// oneDNN takes memory so where it packs bfloat16 weights: on machines that multiply bfloat16.
TEST(CachingAllocator, GivesAndTakesRawMemory) {
  ops::install_caching_allocator();
  c10::Allocator* const allocator = c10::GetCPUAllocator();
  for (int round = 0; round < 3; ++round) {
    std::vector<void*> blocks;
    for (const size_t bytes : {0, 1, 100, 4096, 65536, 1 << 20, 3 << 20}) {
      void* const block = allocator->raw_allocate(bytes);
      if (bytes > 0) std::memset(block, 1, bytes);
      blocks.push_back(block);
    }
    for (void* const block : blocks) allocator->raw_deallocate(block);
  }
}

TEST(Learner, SteadyStepTakesNoLargeBlockFromTheSystem) {
  ops::install_caching_allocator();
  ModelConfig config = tiny_config();
  config.hidden_size = 64;
  config.intermediate_size = 256;
  config.vocab_size = 4096;  // embedding, head and logits of 1 MB and more
  at::manual_seed(5);
  const at::Tensor tokens = at::randint(4096, {8, 513}, at::kLong);
  for (const std::string recompute : {"none", "layer"}) {
    for (const std::string dtype : {"float32", "bfloat16"}) {
      TrainOptions options = float32_options();
      options.recompute = recompute;
      options.dtype = dtype;
      Learner learner(config, options);
      const int64_t before = ops::caching_allocator_stats().new_blocks;
      losses_of(learner, tokens, 2);
      const int64_t steady = ops::caching_allocator_stats().new_blocks;
      losses_of(learner, tokens, 2);
      EXPECT_EQ(ops::caching_allocator_stats().new_blocks, steady) << recompute << " " << dtype;
      if (recompute == "none" && dtype == "float32") {
        EXPECT_GT(steady, before) << "nothing here is large";
      }
    }
  }
}

}  // namespace
}  // namespace laplace
