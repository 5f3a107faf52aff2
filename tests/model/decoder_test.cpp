// The whole model against the golden vectors: logits, loss, every parameter's gradient, greedy
// tokens and states; and its two forms against each other at every prompt length.
#include "model/decoder.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include "model/gradient_pass.h"
#include "model/weight_files.h"
#include "support/golden.h"

namespace laplace {
namespace {

using laplace::testing::golden_path;
using laplace::testing::GoldenFile;
using laplace::testing::max_error;
using laplace::testing::rms_error;

Decoder open_golden(const std::string& name, at::ScalarType dtype) {
  const ModelConfig config = ModelConfig::load(golden_path(name));
  return Decoder::open(golden_path(name), config, dtype, at::kCPU);
}

struct Expectation {
  at::ScalarType dtype;
  double logits, loss, gradients;
};

class DecoderGolden : public ::testing::TestWithParam<Expectation> {};

TEST_P(DecoderGolden, ForwardAndBackward) {
  const Expectation& want = GetParam();
  for (const std::string file_name : {"model_forward.safetensors", "model_docs.safetensors"}) {
    const GoldenFile file(file_name);
    Decoder model = open_golden("tiny", want.dtype);
    for (const at::Tensor& w : model.weights()) w.requires_grad_();
    const at::Tensor tokens = file.tensor("", "tokens");
    const auto docs = file.optional("", "doc_start");
    std::vector<at::Tensor> residuals;
    const at::Tensor hidden = model.hidden(tokens, docs, nullptr, Form::kChunked, &residuals);
    const at::Tensor logits = file.tensor("", "logits");
    EXPECT_LT(max_error(model.logits(hidden).view_as(logits), logits), want.logits);
    for (size_t i = 0; i < residuals.size(); ++i) {
      if (const auto ref = file.optional("", "hidden." + std::to_string(i))) {
        EXPECT_LT(max_error(residuals[i], *ref), want.logits) << i;
      }
    }
    const int64_t T = tokens.size(1) - 1;
    const auto head = docs ? std::optional(docs->slice(1, 0, T)) : std::nullopt;
    const at::Tensor loss = model.loss(tokens, head);
    EXPECT_NEAR(loss.item<double>() / file.number("", "loss"), 1, want.loss);
    loss.backward();
    std::vector<at::Tensor> own;  // the gradient pass, as training runs it
    for (const at::Tensor& w : model.weights()) own.push_back(at::zeros_like(w.detach()));
    const double own_loss = GradientPass(model, Recompute::kNone).run(tokens, head, 1, own);
    EXPECT_NEAR(own_loss / file.number("", "loss"), 1, want.loss);
    const auto table = parameter_table(model.config());
    for (size_t i = 0; i < table.size(); ++i) {
      const at::Tensor& grad = model.weights()[i].grad();
      ASSERT_TRUE(grad.defined()) << table[i].name;
      const at::Tensor ref = file.tensor("", "grad." + table[i].name);
      EXPECT_LT(max_error(grad, ref), want.gradients) << table[i].name << " in " << file_name;
      EXPECT_LT(max_error(own[i], ref), want.gradients) << table[i].name << " in " << file_name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, DecoderGolden,
                         ::testing::Values(Expectation{at::kDouble, 1e-11, 1e-12, 1e-11},
                                           Expectation{at::kFloat, 2e-5, 1e-6, 2e-4}));

TEST(Decoder, BfloatForwardIsNearTheExactOne) {
  const c10::NoGradGuard no_grad;
  const GoldenFile file("model_bf16.safetensors");
  const GoldenFile docs_file("model_docs.safetensors");
  const Decoder model = open_golden("tiny_bf16", at::kBFloat16);
  const at::Tensor tokens = docs_file.tensor("", "tokens"),
                   docs = docs_file.tensor("", "doc_start");
  const at::Tensor ref = file.tensor("", "logits");
  const at::Tensor got = model.logits(model.hidden(tokens, docs)).view_as(ref);
  EXPECT_LT(max_error(got, ref), 2e-1);
  EXPECT_LT(rms_error(got, ref), 2e-2);
  const double loss = model.loss(tokens, docs.slice(1, 0, tokens.size(1) - 1)).item<double>();
  EXPECT_NEAR(loss / file.number("", "loss"), 1, 2e-3);
}

TEST(Decoder, GreedyTokensAndStates) {
  const c10::NoGradGuard no_grad;
  const GoldenFile file("model_decode.safetensors");
  for (const auto dtype : {at::kDouble, at::kFloat}) {
    for (const Form form : {Form::kRecurrent, Form::kChunked}) {
      const double tolerance = dtype == at::kDouble ? 1e-11 : 2e-5;
      const Decoder model = open_golden("tiny", dtype);
      ModelState state = model.zero_state(1);
      const at::Tensor prompt = file.tensor("", "prompt");
      at::Tensor logits =
          model.logits(model.hidden(prompt.unsqueeze(0), {}, &state, form)).slice(0, -1);
      const auto expect_state = [&](const std::string& prefix) {
        for (size_t i = 0; i < state.size(); ++i) {
          const std::string name = prefix + std::to_string(i);
          EXPECT_LT(max_error(state[i].S, file.tensor("", name + ".S")), tolerance);
          EXPECT_LT(max_error(state[i].window, file.tensor("", name + ".window")), tolerance);
        }
      };
      expect_state("prompt_state.");
      const at::Tensor generated = file.tensor("", "generated"), ref = file.tensor("", "logits");
      for (int64_t t = 0; t < generated.size(0); ++t) {
        EXPECT_LT(max_error(logits[0], ref[t]), tolerance);
        const at::Tensor token = logits.argmax(-1);
        EXPECT_EQ(token.item<int64_t>(), generated[t].item<int64_t>()) << t;
        if (t + 1 < generated.size(0)) logits = model.step(token, state);
      }
      expect_state("state.");
    }
  }
}

// Prefill by chunks then one recurrent step must give the logits of a full forward, for every
// length.
TEST(Decoder, FormsAgreeAtEveryPromptLength) {
  const c10::NoGradGuard no_grad;
  const Decoder model = open_golden("tiny", at::kFloat);
  at::manual_seed(7);
  const at::Tensor tokens = at::randint(97, {1, 301}, at::kLong);
  const at::Tensor full = model.logits(model.hidden(tokens));
  ModelState recurrent = model.zero_state(1);
  for (int64_t n = 1; n <= 300; ++n) {
    const at::Tensor step = model.step(tokens.select(1, n - 1), recurrent);
    EXPECT_LT(max_error(step[0], full[n - 1]), 1e-4) << n;
    ModelState prefilled = model.zero_state(1);
    (void)model.hidden(tokens.slice(1, 0, n), {}, &prefilled);
    const at::Tensor next = model.step(tokens.select(1, n), prefilled);
    EXPECT_LT(max_error(next[0], full[n]), 1e-4) << n;
  }
}

TEST(Decoder, StateThatIsGivenIsNeverWrittenTo) {
  const c10::NoGradGuard no_grad;
  const Decoder model = open_golden("tiny", at::kFloat);
  ModelState state = model.zero_state(1);
  const ModelState before = state;
  (void)model.hidden(at::ones({1, 5}, at::kLong), {}, &state);
  EXPECT_EQ(before[0].S.abs().max().item<float>(), 0);
  EXPECT_GT(state[0].S.abs().max().item<float>(), 0);
}

}  // namespace
}  // namespace laplace
