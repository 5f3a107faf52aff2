// Every operator against the golden vectors: outputs and all gradients, in float64, float32 and
// bfloat16, at the tolerances of tests/data/golden/README.md.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>

#include "ops/gla_chunk/gla_chunk.h"
#include "ops/gla_chunk/pair_gemm.h"
#include "ops/gla_output/gla_output.h"
#include "ops/gla_step/gla_step.h"
#include "ops/layer_norm/layer_norm.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/short_conv/short_conv.h"
#include "ops/swiglu/swiglu.h"
#include "support/golden.h"

namespace laplace {
namespace {

using laplace::testing::GoldenFile;
using laplace::testing::max_error;
using laplace::testing::rms_error;
using std::optional;

// What a dtype may deviate by: e = max|x - ref| / rms(ref), r = rms(x - ref) / rms(ref).
struct Tolerance {
  double e, r;
};

// One case of one golden file in one dtype: loads inputs as leaves, compares outputs and gradients.
class Case {
 public:
  Case(const GoldenFile& file, std::string name, at::ScalarType dtype)
      : file_(file), name_(std::move(name)), dtype_(dtype) {}

  at::ScalarType sums() const { return dtype_ == at::kDouble ? at::kDouble : at::kFloat; }

  // An input that wants a gradient, in the case's dtype (or `dtype`).
  at::Tensor leaf(const std::string& name) { return *optional_leaf(name, dtype_); }
  optional<at::Tensor> optional_leaf(const std::string& name, at::ScalarType dtype) {
    auto tensor = file_.optional(name_, name);
    if (!tensor) return std::nullopt;
    at::Tensor made = tensor->to(dtype, false, /*copy=*/true).requires_grad_();
    leaves_.emplace_back(name, made);
    return made;
  }
  at::Tensor constant(const std::string& name) const { return file_.tensor(name_, name); }
  optional<at::Tensor> optional_constant(const std::string& name) const {
    return file_.optional(name_, name);
  }
  double number(const std::string& name) const { return file_.number(name_, name); }

  void expect_output(const std::string& name, const at::Tensor& got, Tolerance tolerance) {
    compare(name, got, tolerance);
    outputs_.emplace_back(name, got);
  }

  // The gradients of sum(y * cot_y) over all outputs with a cotangent (1 for a loss).
  void expect_gradients(Tolerance tolerance) {
    std::vector<at::Tensor> roots, cotangents, inputs;
    for (const auto& [name, output] : outputs_) {
      auto cotangent = name == "loss" ? optional(at::ones({1}, at::kFloat))
                                      : file_.optional(name_, "cot_" + name);
      if (!cotangent) continue;
      EXPECT_TRUE(output.grad_fn() != nullptr) << name << " has lost its gradient";
      roots.push_back(output);
      cotangents.push_back(cotangent->to(output.scalar_type()).view_as(output));
    }
    for (const auto& [name, leaf] : leaves_) inputs.push_back(leaf);
    const auto grads = torch::autograd::grad(roots, inputs, cotangents, /*retain_graph=*/true,
                                             /*create_graph=*/false, /*allow_unused=*/true);
    for (size_t i = 0; i < leaves_.size(); ++i) {
      const std::string name = "grad_" + leaves_[i].first;
      if (!file_.optional(name_, name)) continue;
      ASSERT_TRUE(grads[i].defined()) << name;
      compare(name, grads[i], tolerance);
    }
  }

 private:
  void compare(const std::string& name, const at::Tensor& got, Tolerance tolerance) const {
    const at::Tensor ref = file_.tensor(name_, name).view_as(got);
    EXPECT_LT(max_error(got, ref), tolerance.e) << name_ << "." << name << " in " << dtype_;
    EXPECT_LT(rms_error(got, ref), tolerance.r) << name_ << "." << name << " in " << dtype_;
  }

  const GoldenFile& file_;
  std::string name_;
  at::ScalarType dtype_;
  std::vector<std::pair<std::string, at::Tensor>> leaves_, outputs_;
};

// Runs `body` on every case of a file: in float64 and float32, and in bfloat16 where the inputs are
// exact in it.
void for_each_case(const std::string& file_name,
                   const std::function<void(Case&, const std::string&, at::ScalarType)>& body) {
  const GoldenFile file(file_name);
  ASSERT_FALSE(file.cases().empty());
  for (const std::string& name : file.cases()) {
    const bool exact = name.find("bf16") != std::string::npos;
    for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      if (dtype == at::kBFloat16 && !exact) continue;
      Case one(file, name, dtype);
      body(one, name, dtype);
    }
  }
}

Tolerance choose(at::ScalarType dtype, double e64, double e32, Tolerance bf16) {
  if (dtype == at::kDouble) return {e64, e64};
  return dtype == at::kFloat ? Tolerance{e32, e32} : bf16;
}

// Where pairs of bfloat16 are multiplied, scores are rounded to it.
Tolerance gla_tolerance(at::ScalarType dtype) {
  return choose(dtype, 1e-12, 1e-5, {5e-2, ops::pair_gemm() == nullptr ? 5e-3 : 1e-2});
}

class GlaGolden : public ::testing::TestWithParam<const char*> {};

void check_every_chunk_size(const char* file_name) {
  for_each_case(file_name, [&](Case&, const std::string& name, at::ScalarType dtype) {
    const GoldenFile file(file_name);
    const int64_t T = file.tensor(name, "q").size(1);
    for (const int64_t chunk :
         {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{16}, int64_t{64}, int64_t{128}, T, T + 5}) {
      SCOPED_TRACE(::testing::Message() << "chunk " << chunk);
      Case c(file, name, dtype);
      const auto tolerance = gla_tolerance(dtype);
      const at::Tensor q = c.leaf("q"), k = c.leaf("k"), v = c.leaf("v");
      const auto h0 = c.optional_leaf("h0", c.sums());
      const auto [o, ht] = ops::gla_chunk(q, k, v, c.constant("log_decay"), h0,
                                          c.optional_constant("doc_start"), chunk);
      c.expect_output("o", o, tolerance);
      c.expect_output("ht", ht, tolerance);
      c.expect_gradients(tolerance);
    }
  });
}

TEST_P(GlaGolden, EveryChunkSize) { check_every_chunk_size(GetParam()); }

TEST(GlaGoldenPairs, EveryChunkSize) {
  ops::use_plain_pair_gemm(true);
  check_every_chunk_size("gla_bf16.safetensors");
  ops::use_plain_pair_gemm(false);
}

TEST_P(GlaGolden, StepByStep) {
  for_each_case(GetParam(), [](Case& c, const std::string& name, at::ScalarType dtype) {
    const at::Tensor q = c.constant("q").to(dtype), k = c.constant("k").to(dtype),
                     v = c.constant("v").to(dtype), log_decay = c.constant("log_decay");
    const auto docs = c.optional_constant("doc_start");
    const auto h0 = c.optional_constant("h0");
    at::Tensor S = h0 ? h0->to(c.sums(), false, true)
                      : at::zeros({q.size(0), q.size(2), q.size(3), v.size(3)}, c.sums());
    std::vector<at::Tensor> o;
    for (int64_t t = 0; t < q.size(1); ++t) {
      if (docs) S.mul_(docs->select(1, t).eq(0).to(S.scalar_type()).view({-1, 1, 1, 1}));
      o.push_back(ops::gla_step(q.select(1, t), k.select(1, t), v.select(1, t), log_decay, S));
    }
    const auto tolerance = choose(dtype, 1e-12, 1e-5, {5e-2, 5e-3});
    c.expect_output("o", at::stack(o, 1), tolerance);
    c.expect_output("ht", S, tolerance);
    (void)name;
  });
}

INSTANTIATE_TEST_SUITE_P(Files, GlaGolden,
                         ::testing::Values("gla.safetensors", "gla_wide.safetensors",
                                           "gla_docs.safetensors", "gla_extreme.safetensors",
                                           "gla_bf16.safetensors"));

TEST(ShortConv, Golden) {
  for_each_case("short_conv.safetensors", [](Case& c, const std::string&, at::ScalarType dtype) {
    const auto tolerance = choose(dtype, 1e-12, 5e-6, {5e-2, 5e-3});
    const at::Tensor x = c.leaf("x"), weight = c.leaf("weight");
    const auto window = c.optional_leaf("window", c.sums());
    const auto [y, window_out] =
        ops::short_conv(x, weight, window, c.optional_constant("doc_start"));
    c.expect_output("y", y, tolerance);
    c.expect_output("window_out", window_out, tolerance);
    c.expect_gradients(tolerance);
  });
}

TEST(GlaOutput, Golden) {
  for_each_case("gla_output.safetensors", [](Case& c, const std::string&, at::ScalarType dtype) {
    const at::Tensor o = c.leaf("o"), q = c.leaf("q"), k = c.leaf("k"), v = c.leaf("v"),
                     g = c.leaf("g"), a = c.leaf("aug_balance"), w = c.leaf("head_norm");
    c.expect_output("y", ops::gla_output(o, q, k, v, g, a, w, c.number("eps")),
                    choose(dtype, 1e-12, 1e-5, {1e-1, 1e-2}));
    c.expect_gradients(choose(dtype, 1e-11, 5e-5, {2e-1, 1.5e-2}));
  });
}

TEST(LayerNorm, Golden) {
  for_each_case("layer_norm.safetensors", [](Case& c, const std::string& name,
                                             at::ScalarType dtype) {
    const bool hard = name == "large_mean";
    const auto tolerance = choose(dtype, hard ? 1e-11 : 1e-12, hard ? 1e-4 : 5e-6, {5e-2, 1e-2});
    const at::Tensor x = c.leaf("x"), weight = c.leaf("weight");
    c.expect_output("y", ops::layer_norm(x, weight, c.number("eps")), tolerance);
    c.expect_gradients(tolerance);
  });
}

TEST(Swiglu, Golden) {
  for_each_case("swiglu.safetensors", [](Case& c, const std::string&, at::ScalarType dtype) {
    const auto tolerance = choose(dtype, 1e-12, 5e-6, {5e-2, 5e-3});
    c.expect_output("y", ops::swiglu(c.leaf("gate_up")), tolerance);
    c.expect_gradients(tolerance);
  });
}

TEST(LinearCrossEntropy, Golden) {
  for_each_case("linear_cross_entropy.safetensors", [](Case& c, const std::string& name,
                                                       at::ScalarType dtype) {
    const auto tolerance = choose(dtype, 1e-12, name == "large_logits" ? 1e-4 : 1e-5, {5e-2, 1e-2});
    const at::Tensor x = c.leaf("x"), weight = c.leaf("weight"), target = c.constant("target");
    c.expect_output("loss", ops::linear_cross_entropy(x, weight, target), tolerance);
    c.expect_gradients(tolerance);
    const at::Tensor nll = -ops::linear_log_prob(x.detach(), weight.detach(), target);
    EXPECT_LT(max_error(nll.mean().view({1}), c.constant("loss")), tolerance.e);
  });
}

}  // namespace
}  // namespace laplace
