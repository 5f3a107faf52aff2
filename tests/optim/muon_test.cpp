// Muon against the golden steps and torch.optim.Muon's, resumption, blocks, corners.
#include "optim/muon.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/zeros_like.h>

#include <utility>
#include <vector>

#include "optim/common.h"
#include "optim/muon_update.h"
#include "support/golden.h"

namespace laplace::testing {
namespace {

const std::vector<std::string> kRules = {"original", "match_rms_adamw"};

MuonOptions options_of(const GoldenFile& file, const std::string& name, const std::string& rule,
                       at::ScalarType dtype) {
  MuonOptions options;
  options.momentum = file.number(name, "momentum");
  options.nesterov = file.integer(name, "nesterov") != 0;
  options.weight_decay = file.number(name, "weight_decay");
  options.adjust = parse_adjust(rule);
  options.dtype = dtype;
  return options;
}

class MuonGolden : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(MuonGolden, ThreeSteps) {
  const double tolerance = GetParam() == at::kDouble ? 1e-12 : 2e-5;
  const GoldenFile file("muon.safetensors");
  for (const std::string& name : file.cases()) {
    for (const std::string& rule : kRules) {
      const at::Tensor p = file.tensor(name, "p0").to(GetParam());
      Muon muon({{"p", p, {}}}, options_of(file, name, rule, GetParam()));
      for (int t = 1; t <= 3; ++t) {
        const std::vector<at::Tensor> g = {file.tensor(name, cat("g", t)).to(GetParam())};
        muon.step(g, file.number(name, "lr"));
        EXPECT_LT(max_error(p, file.tensor(name, cat(rule, ".p", t))), tolerance)
            << name << " " << rule << " " << t;
        EXPECT_LT(max_error(muon.momentum()[0], file.tensor(name, cat("m", t))), tolerance);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Muon, MuonGolden, ::testing::Values(at::kDouble, at::kFloat));

// By each step alone: torch's parameter before it, and what is taken from it beyond the decay.
TEST(Muon, Bfloat16StepsEqualTorch) {
  const GoldenFile file("muon.safetensors");
  double worst = 0;
  for (const std::string& name : file.cases()) {
    for (const std::string& rule : kRules) {
      const double lr = file.number(name, "lr");
      const double keep = 1 - lr * file.number(name, "weight_decay");
      const at::Tensor p = file.tensor(name, "p0");
      Muon muon({{"p", p, {}}}, options_of(file, name, rule, at::kBFloat16));
      at::Tensor torch_before = p.clone();
      for (int t = 1; t <= 3; ++t) {
        const at::Tensor before = p.clone();
        muon.step(std::vector<at::Tensor>{file.tensor(name, cat("g", t))}, lr);
        const at::Tensor torch_after = file.tensor(name, cat(rule, ".torch_p", t));
        const double error =
            rms_error(p.sub(before.mul(keep)), torch_after.sub(torch_before.mul(keep)));
        EXPECT_LT(error, 5e-2) << name << " " << rule << " " << t;
        EXPECT_LT(max_error(muon.momentum()[0], file.tensor(name, cat("torch_m", t))), 2e-6);
        worst = std::max(worst, error);
        torch_before = torch_after;
      }
    }
  }
  RecordProperty("worst", std::to_string(worst));
}

std::vector<OptimParam> parameters() {
  return {{"qkvg", random_tensor({90, 30}, 1), {20, 40, 65, 90}},
          {"out", random_tensor({30, 30}, 2), {}},
          {"row", random_tensor({1, 40}, 3), {}},
          {"column", random_tensor({40, 1}, 4), {}},
          {"down", random_tensor({30, 80}, 5), {}}};
}

std::vector<at::Tensor> gradients(uint64_t step) {
  std::vector<at::Tensor> result;
  uint64_t seed = 100 * (step + 1);
  for (const OptimParam& param : parameters()) {
    result.push_back(random_tensor(param.tensor.sizes(), ++seed));
  }
  return result;
}

TEST(Muon, ContinuesBitExactlyFromSavedState) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
    const MuonOptions options{.dtype = dtype};
    Muon whole(parameters(), options);
    for (uint64_t t = 0; t < 4; ++t) whole.step(gradients(t), 1e-2);

    Muon first(parameters(), options);
    for (uint64_t t = 0; t < 2; ++t) first.step(gradients(t), 1e-2);
    std::vector<OptimParam> saved;
    for (const OptimParam& param : first.params()) {
      saved.push_back({param.name, param.tensor.clone(), param.block_rows});
    }
    Muon second(std::move(saved), options);
    for (size_t i = 0; i < first.params().size(); ++i) {
      second.momentum()[i].copy_(first.momentum()[i]);
    }
    for (uint64_t t = 2; t < 4; ++t) second.step(gradients(t), 1e-2);
    for (size_t i = 0; i < whole.params().size(); ++i) {
      EXPECT_TRUE(same_bits(second.params()[i].tensor, whole.params()[i].tensor));
      EXPECT_TRUE(same_bits(second.momentum()[i], whole.momentum()[i]));
      EXPECT_TRUE(at::isfinite(whole.params()[i].tensor).all().item<bool>());
    }
  }
}

TEST(Muon, PerBlockIsOneMatrixABlock) {
  const MuonOptions options{.dtype = at::kFloat, .per_block = true};
  Muon fused(parameters(), options);
  fused.step(gradients(0), 1e-2);

  const at::Tensor w = parameters()[0].tensor;
  const at::Tensor g = gradients(0)[0];
  std::vector<OptimParam> blocks;
  std::vector<at::Tensor> block_gradients;
  int64_t begin = 0;
  for (const int64_t end : fused.params()[0].block_rows) {
    blocks.push_back({cat("block", begin), w.slice(0, begin, end), {}});
    block_gradients.push_back(g.slice(0, begin, end));
    begin = end;
  }
  Muon apart(std::move(blocks), {.dtype = at::kFloat});
  apart.step(block_gradients, 1e-2);
  EXPECT_TRUE(same_bits(fused.params()[0].tensor, w));

  Muon whole(parameters(), {.dtype = at::kFloat});
  whole.step(gradients(0), 1e-2);
  EXPECT_FALSE(same_bits(whole.params()[0].tensor, w));
  EXPECT_TRUE(same_bits(whole.params()[1].tensor, fused.params()[1].tensor));
}

TEST(Muon, ZeroGradientsDecayOnly) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
    Muon muon(parameters(), {.weight_decay = 0.5, .dtype = dtype});
    std::vector<at::Tensor> zeros;
    for (const at::Tensor& g : gradients(0)) zeros.push_back(at::zeros_like(g));
    muon.step(zeros, 0.1);
    for (size_t i = 0; i < zeros.size(); ++i) {
      EXPECT_LT(max_error(muon.params()[i].tensor, parameters()[i].tensor.mul(0.95)), 1e-6);
    }
  }
}

TEST(MuonUpdate, SameBitsForAnyNumberOfThreadsAndShards) {
  const at::Tensor g = random_tensor({400, 300}, 1);
  const auto run = [&](int threads, int64_t rows_at_once) {
    const Threads scope(threads);
    const at::Tensor m = random_tensor({400, 300}, 2);
    const at::Tensor u = at::zeros_like(m).to(at::kBFloat16);
    const at::Tensor p = random_tensor({400, 300}, 3);
    for (int64_t row = 0; row < 400; row += rows_at_once) {
      const auto rows = [&](const at::Tensor& x) { return x.slice(0, row, row + rows_at_once); };
      muon_momentum(rows(m), rows(g), 0.95, true, rows(u));
      muon_apply(rows(p), rows(u), 0.99, 0.01);
    }
    return std::vector<at::Tensor>{m, u, p};
  };
  const std::vector<at::Tensor> expected = run(1, 400);
  for (const std::vector<at::Tensor>& other : {run(3, 400), run(1, 7), run(2, 100)}) {
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(other[i], expected[i]));
  }
}

TEST(MuonUpdate, StridedFormAgrees) {
  const at::Tensor g = random_tensor({33, 44}, 1);
  for (const bool nesterov : {false, true}) {
    const at::Tensor m = random_tensor({33, 44}, 2);
    const at::Tensor strided = m.t().contiguous().t();
    const at::Tensor u = at::zeros_like(m);
    const at::Tensor strided_u = at::zeros_like(m);
    muon_momentum(m, g, 0.95, nesterov, u);
    muon_momentum(strided, g, 0.95, nesterov, strided_u);
    EXPECT_LT(max_error(m, strided), 1e-6);
    EXPECT_LT(max_error(u, strided_u), 1e-6);
    const at::Tensor p = random_tensor({33, 44}, 3);
    const at::Tensor strided_p = p.t().contiguous().t();
    muon_apply(p, u, 0.9, 0.1);
    muon_apply(strided_p, u, 0.9, 0.1);
    EXPECT_LT(max_error(p, strided_p), 1e-6);
  }
}

TEST(Muon, SteadyStepAllocatesNothingLarge) {
  const std::vector<at::Tensor> g = {random_tensor({1100, 520}, 1), random_tensor({520, 520}, 2)};
  for (const NewtonSchulzForm form : {NewtonSchulzForm::kDirect, NewtonSchulzForm::kGram}) {
    Muon muon({{"a", random_tensor({1100, 520}, 3), {}}, {"b", random_tensor({520, 520}, 4), {}}},
              {.dtype = at::kFloat, .form = form});
    const LargeAllocations large;
    muon.step(g, 1e-2);
    EXPECT_EQ(large.count(), 0);
    random_tensor({1100, 520}, 5);
    EXPECT_GT(large.count(), 0);  // the counter does count
  }
}

TEST(Muon, UpdateNeverAliasesTheMomentum) {
  Muon muon({{"w", random_tensor({20, 30}, 1, at::kFloat), {}}},
            {.nesterov = false, .dtype = at::kFloat});
  const std::vector<at::Tensor> g = {random_tensor({20, 30}, 2)};
  muon.step(g, 1e-2);
  EXPECT_LT(max_error(muon.momentum()[0], g[0].mul(0.05)), 1e-6);
}

TEST(Muon, RefusesWhatDoesNotFit) {
  expect_error(ErrorKind::kFailure, "v is no matrix", [] {
    Muon bad({{"v", random_tensor({5}, 1), {}}}, {});
  });
  expect_error(ErrorKind::kFailure, "row blocks of w", [] {
    Muon bad({{"w", random_tensor({5, 4}, 1), {2, 4}}}, {.per_block = true});
  });
  expect_error(ErrorKind::kFailure, "float32", [] {
    Muon bad({{"w", random_tensor({5, 4}, 1, at::kBFloat16), {}}}, {});
  });
  expect_error(ErrorKind::kBadInput, "momentum", [] { Muon bad({}, {.momentum = 1}); });
  expect_error(ErrorKind::kBadInput, "did you mean \"match_rms_adamw\"",
               [] { parse_adjust("match_rms_adam"); });
  Muon muon(parameters(), {});
  expect_error(ErrorKind::kFailure, "gradients",
               [&] { muon.step(std::vector<at::Tensor>{}, 1e-2); });
}

TEST(Muon, Adjustments) {
  EXPECT_DOUBLE_EQ(adjustment(MuonAdjust::kOriginal, 16, 4), 2);
  EXPECT_DOUBLE_EQ(adjustment(MuonAdjust::kOriginal, 4, 16), 1);
  EXPECT_DOUBLE_EQ(adjustment(MuonAdjust::kMatchRmsAdamw, 4, 25), 1);
}

}  // namespace
}  // namespace laplace::testing
