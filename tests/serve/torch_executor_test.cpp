// The executor for other devices, on the host ("torch:cpu"): it agrees with the CPU executor, and
// rows that pad a step change nothing.
#include <gmock/gmock.h>

#include "base/error.h"
#include "engine_support.h"
#include "serve_support.h"

namespace laplace {
namespace {

using testing::byte_tokenizer;
using testing::golden_path;
using testing::kTinyEndOfText;
using testing::Listener;

std::unique_ptr<Engine> open_tiny_on(const std::string& device, EngineDtype dtype) {
  const Path directory = golden_path("tiny");
  const ModelConfig config = ModelConfig::load(directory);
  EngineOptions options;
  options.device = device;
  options.dtype = dtype;
  options.slots = 3;
  options.threads = 1;
  options.quiet = true;
  return Engine::open(directory, {config, byte_tokenizer(), kTinyEndOfText}, options);
}

Request request_number(int number) {
  Request request;
  for (int i = 0; i < 5 + 4 * number; ++i) request.prompt.push_back((i * 31 + number) % 97);
  request.sampling.temperature = 0;
  request.max_tokens = 12;
  request.ignore_end_of_text = true;
  request.top_log_probs = 2;
  request.n = number == 2 ? 2 : 1;
  return request;
}

TEST(TorchExecutor, AgreesWithTheCpuExecutor) {
  const auto torch = open_tiny_on("torch:cpu", EngineDtype::kFloat32);
  const auto cpu = open_tiny_on("cpu", EngineDtype::kFloat32);
  std::vector<std::shared_ptr<Listener>> got, want;
  for (int i = 0; i < 5; ++i) {
    got.push_back(std::make_shared<Listener>());
    want.push_back(std::make_shared<Listener>());
    torch->submit(request_number(i), got.back());
    cpu->submit(request_number(i), want.back());
  }
  for (int i = 0; i < 5; ++i) {
    got[size_t(i)]->wait(request_number(i).n);
    want[size_t(i)]->wait(request_number(i).n);
    for (int n = 0; n < request_number(i).n; ++n) {
      const auto& a = got[size_t(i)]->heard[n].tokens;
      const auto& b = want[size_t(i)]->heard[n].tokens;
      ASSERT_EQ(a.size(), b.size());
      for (size_t t = 0; t < a.size(); ++t) {
        EXPECT_EQ(a[t].id, b[t].id);
        EXPECT_NEAR(a[t].log_prob, b[t].log_prob, 1e-4);
      }
    }
  }
}

TEST(TorchExecutor, RefusesWhatItCannot) {
  EXPECT_THROW(open_tiny_on("nonsense", EngineDtype::kFloat32), Error);
  EXPECT_THROW(open_tiny_on("torch:cpu", EngineDtype::kInt8), Error);
}

}  // namespace
}  // namespace laplace
