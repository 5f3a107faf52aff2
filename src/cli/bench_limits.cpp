// See bench_limits.h.
#include "cli/bench_limits.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <functional>

#include "base/progress.h"
#include "base/threads.h"

namespace laplace::cli {

namespace {

constexpr int kRounds = 4;
constexpr size_t kBufferBytes = size_t{512} << 20;  // far beyond the caches
constexpr int64_t kCachedBytes = 4 << 20;           // of weights, within the caches

// Seconds of the best of several.
double best_of(int rounds, const std::function<void()>& body) {
  double best = 1e30;
  for (int i = 0; i < rounds; ++i) {
    const Stopwatch watch;
    body();
    best = std::min(best, watch.seconds());
  }
  return best;
}

// How often a pass repeats `body`, of so many operations: enough for the clock, but a tenth of a
// second at most, which on a busy machine comes sooner.
int repeats_of(double flops, double wanted_flops, const std::function<void()>& body) {
  constexpr double kMostSeconds = 0.1;
  const double one = best_of(3, body);
  return std::max(1, int(std::min(wanted_flops / flops, kMostSeconds / one)));
}

// Each thread passes over its part; `work(begin, end)` in 64-bit words.
double bandwidth(PageBuffer& buffer, int threads, double bytes_per_byte,
                 const std::function<void(uint64_t* begin, uint64_t* end)>& work) {
  auto* const words = buffer.as<uint64_t>();
  const int64_t count = int64_t(buffer.size() / sizeof(uint64_t)) / 4096;
  const auto pass = [&] {
    parallel_for(threads, threads, [&](int64_t i) {
      work(words + count * i / threads * 4096, words + count * (i + 1) / threads * 4096);
    });
  };
  pass();  // the first touch
  return double(buffer.size()) * bytes_per_byte / best_of(kRounds, pass);
}

double read_bandwidth(PageBuffer& buffer, int threads) {
  std::atomic<uint64_t> sink{0};
  return bandwidth(buffer, threads, 1, [&](uint64_t* begin, const uint64_t* end) {
    // Whole vectors by type, not by the optimiser's grace: one word at a time, the loop itself
    // would be the limit.
    using Lanes [[gnu::may_alias, gnu::vector_size(64)]] = uint64_t;
    Lanes first = {}, second = {};
    for (; begin < end; begin += 16) {
      first += *reinterpret_cast<const Lanes*>(begin);
      second += *reinterpret_cast<const Lanes*>(begin + 8);
    }
    first += second;
    for (int i = 0; i < 8; ++i) sink += first[i];
  });
}

double update_bandwidth(PageBuffer& buffer, int threads) {
  return bandwidth(buffer, threads, 2, [](uint64_t* begin, const uint64_t* end) {
    for (; begin < end; ++begin) *begin += 3;
  });
}

// The engine's product of `rows` rows with a matrix of the model's width that stays in the cache.
double own_gemm_rate(const CpuModel& model, int64_t rows, int threads) {
  const cpu::Gemm& gemm = model.kernels().gemm[size_t(model.type())];
  const int64_t K = model.config().hidden_size;
  const int64_t panels = std::max<int64_t>(kCachedBytes / gemm.panel_bytes(K), 1);
  PageBuffer weights(size_t(panels * gemm.panel_bytes(K)));
  const std::vector<float> scales(size_t(panels * gemm.width), 1.0F),
      x_scales(static_cast<size_t>(rows), 1.0F);
  const int64_t stride = gemm.steps_of(K) * gemm.x_step_bytes + 64, N = panels * gemm.width;
  PageBuffer x(size_t(rows * stride)), y(size_t(rows * N) * 4);
  std::vector<PageBuffer> scratch;
  for (int i = 0; i < threads; ++i) scratch.emplace_back(size_t(gemm.scratch_bytes(rows)));
  const cpu::GemmArgs args = {weights.data(),
                              gemm.panel_bytes(K),
                              scales.data(),
                              N,
                              gemm.steps_of(K),
                              x.data(),
                              stride,
                              x_scales.data(),
                              rows,
                              cpu::Epilogue::kStore,
                              y.as<float>(),
                              N};
  const double flops = 2.0 * double(rows) * double(K) * double(N);
  const auto pass = [&](int repeats) {
    parallel_for(threads, threads, [&](int64_t i) {
      for (int r = 0; r < repeats; ++r) {
        gemm.run(args, panels * i / threads, panels * (i + 1) / threads, scratch[size_t(i)].data());
      }
    });
  };
  const int repeats = repeats_of(flops, 2e9, [&] { pass(1); });
  return flops * repeats / best_of(kRounds + 1, [&] { pass(repeats); });
}

double library_gemm_rate(int64_t rows, int64_t K, at::ScalarType dtype) {
  const c10::InferenceMode guard;
  const int64_t N = 4096;
  const at::Tensor x = at::ones({rows, K}, dtype), w = at::ones({N, K}, dtype);
  at::Tensor y = at::empty({rows, N}, dtype);
  const double flops = 2.0 * double(rows) * double(K) * double(N);
  const auto product = [&] { at::mm_out(y, x, w.t()); };
  const int repeats = repeats_of(flops, 1e9, product);
  const auto pass = [&] {
    for (int r = 0; r < repeats; ++r) product();
  };
  return flops * repeats / best_of(kRounds, pass);
}

}  // namespace

double update_bandwidth(int threads) {
  PageBuffer buffer(kBufferBytes);
  return update_bandwidth(buffer, threads);
}

MachineLimits measure_limits(const CpuModel& model, int64_t rows, int threads) {
  MachineLimits out;
  {
    PageBuffer buffer(kBufferBytes);
    out.read_bandwidth = read_bandwidth(buffer, threads);
    out.update_bandwidth = update_bandwidth(buffer, threads);
  }
  at::set_num_threads(threads);
  out.own_gemm_rate = own_gemm_rate(model, rows, threads);
  const int64_t K = model.config().hidden_size;
  out.library_gemm_rate = library_gemm_rate(rows, K, at::kFloat);
  if (model.type() == cpu::WeightType::kBfloat16) {
    out.library_gemm_rate =
        std::max(out.library_gemm_rate, library_gemm_rate(rows, K, at::kBFloat16));
  }
  out.gemm_rate = std::max(out.own_gemm_rate, out.library_gemm_rate);
  return out;
}

StepLimit step_limit(const CpuModel& model, const MachineLimits& limits, int64_t rows,
                     int64_t sequences, int64_t heads) {
  StepLimit out;
  const double flops = double(rows) * model.layer_flops() + double(heads) * model.head_flops();
  out.compute_seconds = flops / limits.gemm_rate;
  const double states = 2.0 * double(sequences) * double(model.config().state_bytes());
  out.memory_seconds =
      double(model.step_bytes()) / limits.read_bandwidth + states / limits.update_bandwidth;
  return out;
}

}  // namespace laplace::cli
