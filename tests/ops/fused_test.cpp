// The fused kernels against the portable forms: outputs and all gradients over dtypes, odd shapes,
// boundaries, initial states, strides and threads. ctest runs this binary once for each instruction
// set as well (LAPLACE_CPU).
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdlib>
#include <functional>

#include "ops/gla_chunk/gla_chunk.h"
#include "ops/gla_chunk/pair_gemm.h"
#include "ops/gla_output/gla_output.h"
#include "ops/gla_step/gla_step.h"
#include "ops/layer_norm/layer_norm.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/short_conv/short_conv.h"
#include "ops/simd/targets.h"
#include "ops/swiglu/swiglu.h"
#include "support/golden.h"

namespace laplace {
namespace {

using laplace::testing::rms_error;

using Tensors = std::vector<at::Tensor>;

// Outputs of `op`, then its gradients for random cotangents of every output.
Tensors outputs_and_gradients(const std::function<Tensors(const Tensors&)>& op,
                              const Tensors& inputs) {
  Tensors leaves;
  for (const at::Tensor& x : inputs) leaves.push_back(x.detach().clone().requires_grad_());
  Tensors all = op(leaves), cotangents;
  at::manual_seed(99);
  for (const at::Tensor& y : all) cotangents.push_back(at::randn_like(y));
  const auto gradients =
      torch::autograd::grad(all, leaves, cotangents, std::nullopt, false, /*allow_unused=*/true);
  for (const at::Tensor& g : gradients) {
    if (g.defined()) all.push_back(g);
  }
  return all;
}

class Fused : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  // Both forms on the same inputs, then the fused one on 1 and 2 threads: the same bits.
  void compare(const std::string& what, const std::function<Tensors(const Tensors&)>& op,
               const Tensors& inputs) {
    ops::set_fused_kernels(false);
    const Tensors want = outputs_and_gradients(op, inputs);
    ops::set_fused_kernels(true);
    const int threads = at::get_num_threads();
    at::set_num_threads(1);
    const Tensors got = outputs_and_gradients(op, inputs);
    at::set_num_threads(2);
    const Tensors again = outputs_and_gradients(op, inputs);
    at::set_num_threads(threads);
    const double tolerance = GetParam() == at::kFloat ? 2e-5 : 1.5e-2;
    ASSERT_EQ(got.size(), want.size()) << what;
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(got[i].scalar_type(), want[i].scalar_type()) << what << " tensor " << i;
      EXPECT_LT(rms_error(got[i], want[i].to(at::kDouble)), tolerance) << what << " tensor " << i;
      EXPECT_TRUE(got[i].equal(again[i])) << what << " tensor " << i << ": bits depend on threads";
    }
  }
  void compare_gla_chunk();
  at::Tensor randn(at::IntArrayRef shape) const { return at::randn(shape).to(GetParam()); }
  at::Tensor floats(at::IntArrayRef shape) const { return at::randn(shape); }
};

// Slices of one wide tensor, as the decoder makes them.
Tensors split_heads(const at::Tensor& wide, at::IntArrayRef widths, int64_t H) {
  Tensors parts;
  for (const at::Tensor& part : wide.split_with_sizes(widths, -1)) {
    parts.push_back(part.unflatten(-1, {H, -1}));
  }
  return parts;
}

void Fused::compare_gla_chunk() {
  at::manual_seed(1);
  struct Shape {
    int64_t B, T, H, dk, dv, C;
  };
  for (const Shape& s : {Shape{2, 150, 3, 5, 7, 16},
                         {1, 1, 1, 1, 1, 128},
                         {2, 64, 4, 32, 64, 64},
                         {3, 130, 2, 48, 96, 128},
                         {1, 67, 2, 33, 17, 64},
                         {2, 65, 1, 16, 8, 1},
                         {1, 200, 2, 24, 40, 7}}) {
    const at::Tensor wide = randn({s.B, s.T, s.H * (2 * s.dk + s.dv)});
    const at::Tensor state = floats({s.B, s.H, s.dk, s.dv});
    const at::Tensor lives = at::logspace(0, 11, s.H, 2.0, at::kDouble);
    const at::Tensor decay = (-std::log(2.0) / lives).to(at::kFloat);
    for (const double density : {0.0, 0.05, 0.6, 1.0}) {
      const at::Tensor starts = at::rand({s.B, s.T}).lt(density);
      const auto op = [&](const Tensors& in) -> Tensors {
        const Tensors qkv = split_heads(in[0], {s.H * s.dk, s.H * s.dk, s.H * s.dv}, s.H);
        const auto [o, S] = ops::gla_chunk(qkv[0], qkv[1], qkv[2], decay, in[1], starts, s.C);
        return {o, S};
      };
      compare("gla_chunk T " + std::to_string(s.T) + " C " + std::to_string(s.C) + " starts " +
                  std::to_string(density),
              op, {wide, state});
    }
    const auto stateless = [&](const Tensors& in) -> Tensors {
      const Tensors qkv = split_heads(in[0], {s.H * s.dk, s.H * s.dk, s.H * s.dv}, s.H);
      return {std::get<0>(ops::gla_chunk(qkv[0], qkv[1], qkv[2], decay, {}, {}, s.C))};
    };
    compare("gla_chunk without a state, T " + std::to_string(s.T), stateless, {wide});
  }
}

TEST_P(Fused, GlaChunk) { compare_gla_chunk(); }

// The kernel that multiplies pairs of bfloat16, in its plain form: on any machine.
TEST_P(Fused, GlaChunkOfPairs) {
  ops::use_plain_pair_gemm(true);
  compare_gla_chunk();
  ops::use_plain_pair_gemm(false);
}

TEST(PairGemm, GlaChunkTakesIt) {
  if (!ops::fused_kernels()) GTEST_SKIP() << "the fused kernels are off";
  if (ops::pair_gemm() != nullptr) GTEST_SKIP() << "both results would be of pairs";
  at::manual_seed(8);
  const at::Tensor x = at::randn({1, 70, 2, 16}).to(at::kBFloat16);
  const at::Tensor decay = at::tensor({-0.1, -0.01}, at::kFloat);
  const auto o = [&] { return std::get<0>(ops::gla_chunk(x, x, x, decay, {}, {}, 64)); };
  const at::Tensor floats = o();
  ops::use_plain_pair_gemm(true);
  const at::Tensor pairs = o();
  ops::use_plain_pair_gemm(false);
  EXPECT_FALSE(floats.equal(pairs));
  EXPECT_LT(rms_error(pairs, floats.to(at::kDouble)), 1e-2);
}

// Blocks of all widths and heights, beside a float64 product.
TEST(PairGemm, PlainFormAndTheMachinesAreTheProduct) {
  at::manual_seed(7);
  for (const auto& [m, n, k] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 2},
                                {8, 16, 4},
                                {13, 35, 14},
                                {16, 64, 64},
                                {23, 96, 48},
                                {7, 112, 6}}) {
    const at::Tensor a = at::randn({m, k}).to(at::kBFloat16), b = at::randn({k, n}).to(a);
    const at::Tensor words = b.view({k / 2, 2, n}).transpose(1, 2).contiguous();
    const int64_t columns = (n + 15) / 16 * 16;
    const at::Tensor padded = at::constant_pad_nd(words, {0, 0, 0, columns - n});
    for (const bool add : {false, true}) {
      const at::Tensor before = at::randn({m, columns});
      const at::Tensor product = at::matmul(a.to(at::kDouble), b.to(at::kDouble));
      const at::Tensor want = add ? product + before.slice(1, 0, n).to(at::kDouble) : product;
      for (const ops::PairGemm gemm : {&ops::pair_gemm_plain, ops::pair_gemm()}) {
        if (gemm == nullptr) continue;
        const at::Tensor c = before.clone();
        gemm(ops::Part::kAll, {.m = size_t(m),
                               .n = size_t(n),
                               .pairs = size_t(k / 2),
                               .a = static_cast<const uint16_t*>(a.const_data_ptr()),
                               .lda = size_t(k),
                               .b = static_cast<const uint32_t*>(padded.const_data_ptr()),
                               .ldb = size_t(columns),
                               .c = c.mutable_data_ptr<float>(),
                               .ldc = size_t(columns),
                               .add = add});
        EXPECT_LT(rms_error(c.slice(1, 0, n), want), 1e-6) << m << " " << n << " " << k;
      }
    }
  }
}

TEST_P(Fused, GlaOutput) {
  at::manual_seed(2);
  struct Shape {
    int64_t B, T, H, dk, dv, tiers;
  };
  for (const Shape& s : {Shape{2, 150, 4, 5, 7, 2},
                         {1, 1, 1, 1, 3, 1},
                         {2, 65, 8, 48, 96, 4},
                         {1, 64, 4, 33, 16, 1}}) {
    const std::vector<int64_t> widths = {s.H * s.dk, s.H * s.dk, s.H * s.dv, s.H * s.dv};
    const auto op = [&](const Tensors& in) -> Tensors {
      const Tensors p = split_heads(in[0], widths, s.H);
      return {ops::gla_output(in[1], p[0], p[1], p[2], p[3], in[2], in[3], 1e-5)};
    };
    compare("gla_output T " + std::to_string(s.T), op,
            {randn({s.B, s.T, s.H * 2 * (s.dk + s.dv)}), randn({s.B, s.T, s.H, s.dv}),
             floats({s.H, s.dk}), floats({s.tiers, s.dv})});
  }
}

TEST_P(Fused, ShortConv) {
  at::manual_seed(3);
  for (const int64_t k : {1, 2, 3, 4, 6}) {  // 6: wider than the kernel goes
    for (const int64_t T : {1, 2, 3, 64, 65, 131}) {
      for (const double density : {0.0, 0.1, 1.0}) {
        const at::Tensor starts = at::rand({2, T}).lt(density);
        const auto op = [&](const Tensors& in) -> Tensors {
          const auto [y, window] = ops::short_conv(in[0], in[1], in[2], starts);
          return {y, window};
        };
        compare("short_conv k " + std::to_string(k) + " T " + std::to_string(T) + " starts " +
                    std::to_string(density),
                op, {randn({2, T, 37}), floats({37, k}), floats({2, k, 37})});
      }
      const auto plain = [&](const Tensors& in) -> Tensors {
        return {std::get<0>(ops::short_conv(in[0], in[1], {}, {}))};
      };
      compare("short_conv without a window, T " + std::to_string(T), plain,
              {randn({3, T, 16}), floats({16, k})});
    }
  }
}

TEST_P(Fused, LayerNormAndSwiglu) {
  at::manual_seed(4);
  for (const int64_t D : {1, 7, 8, 64, 100, 768}) {
    for (const int64_t rows : {1, 3, 64, 131}) {
      for (const at::ScalarType out : {at::kFloat, at::kBFloat16}) {
        const auto norm = [&](const Tensors& in) -> Tensors {
          return {ops::layer_norm(in[0] * 2 + 3, in[1], 1e-5, out)};
        };
        if (D > 1 && out == GetParam()) {
          compare("layer_norm D " + std::to_string(D), norm, {randn({rows, D}), floats({D})});
        }
      }
      const auto gated = [&](const Tensors& in) -> Tensors { return {ops::swiglu(in[0])}; };
      compare("swiglu F " + std::to_string(D), gated, {randn({rows, 2 * D}) * 3});
    }
  }
}

TEST_P(Fused, LinearCrossEntropy) {
  at::manual_seed(5);
  for (const int64_t V : {2, 7, 64, 1000, 6000, 50000}) {
    const int64_t n = V == 6000 ? 900 : 37;  // 699 rows a block
    const at::Tensor target = at::randint(V, {n}, at::kLong);
    const auto op = [&](const Tensors& in) -> Tensors {
      return {ops::linear_cross_entropy(in[0], in[1], target)};
    };
    compare("linear_cross_entropy V " + std::to_string(V), op, {randn({n, 24}), randn({V, 24})});
  }
}

TEST_P(Fused, GlaStep) {
  at::manual_seed(6);
  const at::Tensor decay = at::tensor({-0.7, -0.01, -0.0003}, at::kFloat);
  for (const auto& [dk, dv] : {std::pair<int64_t, int64_t>{5, 7}, {48, 96}, {96, 192}}) {
    const at::Tensor q = randn({3, 3, dk}), k = randn({3, 3, dk}), v = randn({3, 3, dv});
    const at::Tensor before = floats({3, 3, dk, dv});
    at::Tensor a = before.clone(), b = before.clone();
    ops::set_fused_kernels(false);
    const at::Tensor want = ops::gla_step(q, k, v, decay, a);
    ops::set_fused_kernels(true);
    const at::Tensor got = ops::gla_step(q, k, v, decay, b);
    EXPECT_LT(rms_error(got, want.to(at::kDouble)), GetParam() == at::kFloat ? 1e-6 : 1e-2);
    EXPECT_LT(rms_error(b, a.to(at::kDouble)), 1e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Fused, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) {
                           return info.param == at::kFloat ? "float32" : "bfloat16";
                         });

TEST(InstructionSets, TheForcedOneRuns) {
  const char* const forced = std::getenv("LAPLACE_CPU");
  ASSERT_TRUE(ops::fused_kernels());
  if (forced != nullptr) {
    EXPECT_EQ(ops::instruction_set(), forced);
  } else {
    EXPECT_EQ(ops::instruction_set(), ops::available_instruction_sets().front());
  }
}

}  // namespace
}  // namespace laplace
