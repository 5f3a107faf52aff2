// What must hold for any input: cuts, boundaries, threads, mixed dtypes, refusals.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "ops/gla_chunk/gla_chunk.h"
#include "ops/gla_output/gla_output.h"
#include "ops/layer_norm/layer_norm.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/short_conv/short_conv.h"
#include "ops/swiglu/swiglu.h"
#include "support/golden.h"

namespace laplace {
namespace {

using laplace::testing::max_error;

at::Tensor rand(at::IntArrayRef shape, at::ScalarType dtype = at::kDouble) {
  return at::randn(shape, at::kDouble).to(dtype);
}

at::Tensor decays(int64_t H) {
  const at::Tensor lives =
      at::pow(2048.0, at::arange(H, at::kDouble) / double(std::max<int64_t>(H - 1, 1)));
  return (-std::log(2.0) / lives).to(at::kFloat);
}

TEST(GlaChunk, AnyCutGivesTheSame) {
  at::manual_seed(1);
  const int64_t T = 53;
  const at::Tensor q = rand({2, T, 3, 5}), k = rand({2, T, 3, 5}), v = rand({2, T, 3, 7});
  const at::Tensor starts = at::rand({2, T}).lt(0.1), gamma = decays(3);
  const auto [whole, end] = ops::gla_chunk(q, k, v, gamma, {}, starts, 16);
  for (int64_t cut = 1; cut < T; ++cut) {
    const auto part = [&](const at::Tensor& x, int64_t a, int64_t b) { return x.slice(1, a, b); };
    const auto [o1, s1] = ops::gla_chunk(part(q, 0, cut), part(k, 0, cut), part(v, 0, cut), gamma,
                                         {}, part(starts, 0, cut), 16);
    const auto [o2, s2] = ops::gla_chunk(part(q, cut, T), part(k, cut, T), part(v, cut, T), gamma,
                                         s1, part(starts, cut, T), 16);
    EXPECT_LT(max_error(at::cat({o1, o2}, 1), whole), 1e-12) << cut;
    EXPECT_LT(max_error(s2, end), 1e-12) << cut;
  }
}

TEST(ShortConv, AnyCutGivesTheSame) {
  at::manual_seed(2);
  const int64_t T = 11;
  const at::Tensor x = rand({2, T, 5}), w = rand({5, 4}), starts = at::rand({2, T}).lt(0.2);
  const auto [whole, end] = ops::short_conv(x, w, {}, starts);
  for (int64_t cut = 1; cut < T; ++cut) {
    const auto [y1, s1] = ops::short_conv(x.slice(1, 0, cut), w, {}, starts.slice(1, 0, cut));
    const auto [y2, s2] = ops::short_conv(x.slice(1, cut), w, s1, starts.slice(1, cut));
    EXPECT_LT(max_error(at::cat({y1, y2}, 1), whole), 1e-12) << cut;
    EXPECT_LT(max_error(s2, end), 1e-12) << cut;
  }
}

TEST(GlaChunk, StridedInputsAndMaskOfZeros) {
  at::manual_seed(3);
  const at::Tensor fused = rand({2, 20, 4 * (3 + 3 + 6)}, at::kFloat);
  const auto parts = fused.split_with_sizes({12, 12, 24}, -1);
  const at::Tensor q = parts[0].unflatten(-1, {4, 3}), k = parts[1].unflatten(-1, {4, 3}),
                   v = parts[2].unflatten(-1, {4, 6});
  const at::Tensor gamma = decays(4), none = at::zeros({2, 20}, at::kBool);
  const auto [a, sa] = ops::gla_chunk(q, k, v, gamma, {}, {}, 8);
  const auto [b, sb] =
      ops::gla_chunk(q.contiguous(), k.contiguous(), v.contiguous(), gamma, {}, none, 8);
  EXPECT_TRUE(a.equal(b));
  EXPECT_TRUE(sa.equal(sb));
}

TEST(Operators, SameBitsForAnyNumberOfThreads) {
  at::manual_seed(4);
  const at::Tensor q = rand({2, 150, 4, 8}, at::kFloat), k = rand({2, 150, 4, 8}, at::kFloat),
                   v = rand({2, 150, 4, 16}, at::kFloat), g = rand({2, 150, 4, 16}, at::kFloat),
                   a = rand({4, 8}, at::kFloat), w = rand({2, 16}, at::kFloat);
  const int before = at::get_num_threads();
  std::vector<at::Tensor> results;
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    const auto [o, S] = ops::gla_chunk(q, k, v, decays(4), {}, {}, 32);
    results.push_back(ops::gla_output(o, q, k, v, g, a, w, 1e-5));
  }
  at::set_num_threads(before);
  EXPECT_TRUE(results[0].equal(results[1]));
}

TEST(LinearCrossEntropy, BlocksGiveWhatTheWholeGives) {
  at::manual_seed(5);
  const int64_t n = 900, D = 6, V = 6000;  // 699 rows a block
  const at::Tensor x = rand({n, D}, at::kFloat).requires_grad_(),
                   w = rand({V, D}, at::kFloat).requires_grad_(),
                   target = at::randint(V, {n}, at::kLong);
  const at::Tensor loss = ops::linear_cross_entropy(x, w, target);
  const at::Tensor x64 = x.detach().to(at::kDouble).requires_grad_(),
                   w64 = w.detach().to(at::kDouble).requires_grad_();
  const at::Tensor ref = at::cross_entropy_loss(at::mm(x64, w64.t()), target);
  EXPECT_LT(max_error(loss, ref), 1e-6);
  const auto got = torch::autograd::grad({loss * 3}, {x, w});
  const auto want = torch::autograd::grad({ref * 3}, {x64, w64});
  // A float32 product over 40,000 columns alone is off by 2e-4.
  EXPECT_LT(max_error(got[0], want[0]), 5e-4);
  EXPECT_LT(max_error(got[1], want[1]), 5e-4);
}

// A maximum and a clamp pass over NaN; a loss must not.
TEST(LinearCrossEntropy, NaNAndInfinityReachTheLoss) {
  for (const float bad : {NAN, INFINITY}) {
    for (const int64_t column : {0, 40, 66}) {
      const at::Tensor x = at::ones({3, 2}).requires_grad_(),
                       target = at::tensor({1, 2, 3}).to(at::kLong);
      at::Tensor w = at::rand({67, 2});
      w.select(0, column).fill_(bad);
      const at::Tensor loss = ops::linear_cross_entropy(x, w.requires_grad_(), target);
      EXPECT_TRUE(std::isnan(loss.item<double>())) << bad << " at " << column;
      const auto gradient = torch::autograd::grad({loss}, {x});
      EXPECT_TRUE(gradient[0].isnan().any().item<bool>());
    }
  }
}

TEST(Operators, FloatWeightsWithBfloatActivations) {
  const at::Tensor x = rand({2, 9, 8}, at::kBFloat16).requires_grad_();
  const at::Tensor norm = at::ones({8}, at::kFloat).requires_grad_(),
                   conv = rand({8, 4}, at::kFloat).requires_grad_();
  const at::Tensor h = ops::layer_norm(x, norm, 1e-5);
  const auto [y, window] = ops::short_conv(h, conv, {}, {});
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_EQ(window.scalar_type(), at::kFloat);
  y.sum().backward();
  EXPECT_EQ(norm.grad().scalar_type(), at::kFloat);
  EXPECT_EQ(conv.grad().scalar_type(), at::kFloat);
  EXPECT_EQ(x.grad().scalar_type(), at::kBFloat16);
  EXPECT_EQ(ops::layer_norm(rand({3, 8}, at::kFloat), norm, 1e-5, at::kBFloat16).scalar_type(),
            at::kBFloat16);
}

// The message of the error that `call` throws, "" when it throws none.
template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(Operators, RefuseWrongArgumentsBySentence) {
  const at::Tensor q = rand({1, 4, 2, 3}), v = rand({1, 4, 2, 5}), gamma = decays(2);
  using ::testing::Message;
  EXPECT_NE(refusal([&] { ops::gla_chunk(q, q, v, gamma, {}, {}, 0); }).find("chunk_size is 0"),
            std::string::npos);
  EXPECT_NE(refusal([&] { ops::gla_chunk(q, v, v, gamma, {}, {}, 4); }).find("k has shape"),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              ops::gla_chunk(q, q, v, gamma.to(at::kBFloat16), {}, {}, 4);
            }).find("log_decay has dtype"),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              ops::gla_chunk(q, q, v, gamma, rand({1, 2, 3, 4}), {}, 4);
            }).find("state has shape"),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              ops::gla_chunk(q, q, v, gamma, {}, at::zeros({1, 3}, at::kBool), 4);
            }).find("doc_start has shape"),
            std::string::npos);
  EXPECT_NE(refusal([&] { ops::swiglu(rand({2, 3})); }).find("must be even"), std::string::npos);
  EXPECT_NE(refusal([&] {
              ops::layer_norm(rand({2, 3}), rand({4}), 1e-5);
            }).find("weight has shape"),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              ops::gla_output(v, q, q, v, v, rand({2, 3}), rand({3, 5}), 1e-5);
            }).find("do not divide"),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              ops::linear_cross_entropy(rand({2, 3}), rand({4, 3}), at::zeros({2}, at::kInt));
            }).find("target has dtype"),
            std::string::npos);
}

// What is called by its name, as from Python, is checked too: these ended the process.
TEST(Operators, RefuseWrongArgumentsByName) {
  const auto call = [](const char* op, std::vector<c10::IValue> stack) {
    return refusal(
        [&] { c10::Dispatcher::singleton().findSchemaOrThrow(op, "").callBoxed(stack); });
  };
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const at::Tensor q = rand({2, 2, 3}, dtype), v = rand({2, 2, 4}, dtype), gamma = decays(2),
                     state = rand({2, 2, 3, 4}, dtype);
    using ::testing::HasSubstr;
    EXPECT_THAT(call("laplace::gla_step", {q, rand({1, 2, 3}, dtype), v, gamma, state}),
                HasSubstr("k has shape"));
    EXPECT_THAT(call("laplace::gla_step", {q, q, v, gamma, rand({2, 2, 3, 3}, dtype)}),
                HasSubstr("state has shape"));
    EXPECT_THAT(
        call("laplace::gla_step", {q.detach().clone().set_requires_grad(true), q, v, gamma, state}),
        HasSubstr("no gradients"));
    const at::Tensor x = rand({3, 5}, dtype), w = rand({7, 5}, dtype);
    const auto targets = [](std::vector<int64_t> of) { return at::tensor(of, at::kLong); };
    for (const char* op : {"laplace::linear_cross_entropy", "laplace::linear_log_prob"}) {
      for (const int64_t wrong : {int64_t{7}, int64_t{-1}, int64_t{-100}, int64_t{1} << 40}) {
        EXPECT_THAT(call(op, {x, w, targets({0, wrong, 6})}), HasSubstr("must lie in [0, 7)"));
      }
      EXPECT_THAT(call(op, {x, w, targets({0, 1})}), HasSubstr("target has shape"));
      EXPECT_THAT(call(op, {x, w.slice(0, 0, 0), targets({0, 1, 2})}), HasSubstr("no size"));
    }
    EXPECT_THAT(call("laplace::linear_log_prob",
                     {x.detach().clone().set_requires_grad(true), w, targets({0, 1, 2})}),
                HasSubstr("no gradients"));
  }
}

}  // namespace
}  // namespace laplace
