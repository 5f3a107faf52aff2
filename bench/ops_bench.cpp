// The operators, forward and backward, at the shapes of the demo (0) and of laplace-160m (1), fused
// and portable. Time is a whole forward and backward; the counter is tokens a second.
#include <ATen/ATen.h>
#include <benchmark/benchmark.h>

#include <functional>

#include "base/process.h"
#include "ops/gla_chunk/gla_chunk.h"
#include "ops/gla_output/gla_output.h"
#include "ops/layer_norm/layer_norm.h"
#include "ops/short_conv/short_conv.h"
#include "ops/simd/targets.h"
#include "ops/swiglu/swiglu.h"

namespace laplace {
namespace {

struct Shape {
  int64_t B, T, D, H, dk, dv, F, C;
};
constexpr Shape kShapes[] = {{8, 256, 256, 4, 32, 64, 704, 64},
                             {1, 2048, 768, 8, 48, 96, 2048, 128}};

at::Tensor leaf(at::IntArrayRef shape) { return at::randn(shape, at::kFloat).requires_grad_(); }

void measure(benchmark::State& state, const Shape& s, const std::function<at::Tensor()>& forward) {
  ops::set_fused_kernels(state.range(1) != 0);
  const at::Tensor cotangent = at::ones_like(forward().detach());
  for (auto _ : state) forward().backward(cotangent);
  state.counters["tokens/s"] =
      benchmark::Counter(double(s.B * s.T), benchmark::Counter::kIsIterationInvariantRate);
}

void gla_chunk(benchmark::State& state) {
  const Shape& s = kShapes[state.range(0)];
  const at::Tensor q = leaf({s.B, s.T, s.H, s.dk}), k = leaf({s.B, s.T, s.H, s.dk}),
                   v = leaf({s.B, s.T, s.H, s.dv});
  const at::Tensor log_decay = -at::rand({s.H}, at::kFloat);
  measure(state, s, [&] { return std::get<0>(ops::gla_chunk(q, k, v, log_decay, {}, {}, s.C)); });
}
BENCHMARK(gla_chunk)->ArgsProduct({{0, 1}, {0, 1}})->ArgNames({"shape", "fused"})->UseRealTime();

void gla_output(benchmark::State& state) {
  const Shape& s = kShapes[state.range(0)];
  const at::Tensor o = leaf({s.B, s.T, s.H, s.dv}), q = leaf({s.B, s.T, s.H, s.dk}),
                   k = leaf({s.B, s.T, s.H, s.dk}), v = leaf({s.B, s.T, s.H, s.dv}),
                   g = leaf({s.B, s.T, s.H, s.dv}), a = leaf({s.H, s.dk}), w = leaf({4, s.dv});
  measure(state, s, [&] { return ops::gla_output(o, q, k, v, g, a, w, 1e-5); });
}
BENCHMARK(gla_output)->ArgsProduct({{0, 1}, {0, 1}})->ArgNames({"shape", "fused"})->UseRealTime();

void short_conv(benchmark::State& state) {
  const Shape& s = kShapes[state.range(0)];
  const at::Tensor x = leaf({s.B, s.T, s.D}), w = leaf({s.D, 4});
  measure(state, s, [&] { return std::get<0>(ops::short_conv(x, w, {}, {})); });
}
BENCHMARK(short_conv)->ArgsProduct({{0, 1}, {0, 1}})->ArgNames({"shape", "fused"})->UseRealTime();

void layer_norm(benchmark::State& state) {
  const Shape& s = kShapes[state.range(0)];
  const at::Tensor x = leaf({s.B, s.T, s.D}), w = leaf({s.D});
  measure(state, s, [&] { return ops::layer_norm(x, w, 1e-5); });
}
BENCHMARK(layer_norm)->ArgsProduct({{0, 1}, {0, 1}})->ArgNames({"shape", "fused"})->UseRealTime();

void swiglu(benchmark::State& state) {
  const Shape& s = kShapes[state.range(0)];
  const at::Tensor x = leaf({s.B * s.T, 2 * s.F});
  measure(state, s, [&] { return ops::swiglu(x); });
}
BENCHMARK(swiglu)->ArgsProduct({{0, 1}, {0, 1}})->ArgNames({"shape", "fused"})->UseRealTime();

}  // namespace
}  // namespace laplace

int main(int argc, char** argv) {
  laplace::init_process();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
