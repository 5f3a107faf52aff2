// See bench_ops.h. Forward and backward of each operator at a model's shapes: fused and portable
// interleaved, the best of the rounds; the bytes that must move beside a copy of as many, or for
// states, which stay where they are, beside memory that is updated in place.
#include "cli/bench_ops.h"
#include "cli/checks.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/progress.h"
#include "base/strings.h"
#include "cli/bench_limits.h"
#include "cli/model_options.h"
#include "model/compute_dtype.h"
#include "model/config.h"
#include "ops/caching_allocator.h"
#include "ops/gla_chunk/gla_chunk.h"
#include "ops/gla_output/gla_output.h"
#include "ops/gla_step/gla_step.h"
#include "ops/layer_norm/layer_norm.h"
#include "ops/short_conv/short_conv.h"
#include "ops/simd/targets.h"
#include "ops/swiglu/swiglu.h"

namespace laplace::cli {

namespace {

struct BenchOpsOptions {
  std::string config;
  std::string dtype = "auto";
  int64_t seq_length = 2048;
  int64_t batch = 4;
  int rounds = 5;
  bool json = false;
};

// One thing to time, and the bytes it must at least read and write.
struct Case {
  std::string name;
  double bytes;
  std::function<void()> run;
  bool in_place = false;
};

// Bytes a second, read and written, of a parallel copy of 256 MB.
double copy_bandwidth() {
  constexpr int64_t kBytes = int64_t{1} << 28;
  static const at::Tensor from = at::ones({kBytes}, at::kByte), to = at::empty_like(from);
  const Stopwatch watch;
  at::parallel_for(0, kBytes, kBytes / 64, [&](int64_t begin, int64_t end) {
    std::memcpy(static_cast<char*>(to.data_ptr()) + begin,
                static_cast<const char*>(from.data_ptr()) + begin, size_t(end - begin));
  });
  return 2.0 * double(kBytes) / watch.seconds();
}

class Cases {
 public:
  Cases(const ModelConfig& config, const BenchOpsOptions& options)
      : c_(config),
        B_(options.batch),
        T_(options.seq_length),
        dtype_(parse_compute_dtype(options.dtype, at::kCPU)),
        log_decay_(at::tensor(c_.log_decays())) {}

  std::vector<Case> all() {
    return {gla_chunk(), gla_output(), short_conv(), layer_norm(), swiglu()};
  }
  // `slots` states of one layer, updated in place.
  Case gla_step(int64_t slots) const {
    const int64_t H = c_.num_heads, dk = c_.head_k_dim, dv = c_.head_v_dim;
    const at::Tensor q = rand({slots, H, dk}), k = rand({slots, H, dk}), v = rand({slots, H, dv});
    const auto S = std::make_shared<at::Tensor>(at::zeros({slots, H, dk, dv}));
    return {cat("gla_step, ", slots, " slots"), 2.0 * double(S->nbytes()),
            [=, decay = log_decay_] { ops::gla_step(q, k, v, decay, *S); }, true};
  }

 private:
  at::Tensor rand(at::IntArrayRef shape) const { return at::randn(shape).to(dtype_); }
  at::Tensor heads(int64_t width) const { return rand({B_, T_, c_.num_heads, width}); }
  static double bytes_of(std::initializer_list<at::Tensor> tensors) {
    double sum = 0;
    for (const at::Tensor& t : tensors) sum += double(t.nbytes());
    return sum;
  }

  Case gla_chunk() const {
    const at::Tensor q = heads(c_.head_k_dim), k = heads(c_.head_k_dim), v = heads(c_.head_v_dim);
    at::Tensor dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
    const int64_t C = c_.chunk_size;
    return {"gla_chunk", bytes_of({q, k, v, v, q, q, k, k, v, v, v}),
            [=, decay = log_decay_]() mutable {
              const auto [o, S, states] = ops::gla_chunk_forward(q, k, v, decay, {}, {}, C);
              ops::gla_chunk_backward(o, {}, q, k, v, decay, states, {}, C, false, dq, dk, dv);
            }};
  }
  Case gla_output() const {
    const at::Tensor q = heads(c_.head_k_dim), k = heads(c_.head_k_dim), v = heads(c_.head_v_dim),
                     o = heads(c_.head_v_dim), g = heads(c_.head_v_dim);
    at::Tensor dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v),
               dg = at::empty_like(g);
    const at::Tensor a = at::randn({c_.num_heads, c_.head_k_dim}),
                     w = at::randn({c_.num_norm_tiers, c_.head_v_dim});
    // Forward reads o, q, k, v, g and writes y; backward reads them and dy, and writes five.
    return {"gla_output", bytes_of({o, q, k, v, g, o, o, q, k, v, g, o, o, q, k, v, g}),
            [=, eps = c_.norm_eps]() mutable {
              const at::Tensor y = ops::gla_output_forward(o, q, k, v, g, a, w, eps);
              ops::gla_output_backward(y, o, q, k, v, g, a, w, eps, dq, dk, dv, dg);
            }};
  }
  Case short_conv() const {
    const at::Tensor x = rand({B_, T_, c_.hidden_size}),
                     w = at::randn({c_.hidden_size, c_.conv_kernel});
    return {"short_conv", bytes_of({x, x, x, x, x}), [=] {
              const auto [y, window] = ops::short_conv_forward(x, w, {}, {});
              ops::short_conv_backward(y, {}, x, w, {}, {});
            }};
  }
  Case layer_norm() const {
    const at::Tensor x = at::randn({B_, T_, c_.hidden_size}), w = at::randn({c_.hidden_size}),
                     dy = rand({B_, T_, c_.hidden_size});
    return {"layer_norm", bytes_of({x, dy, x, dy, x}), [=, eps = c_.norm_eps, dtype = dtype_] {
              const auto [y, mean, rstd] = ops::layer_norm_forward(x, w, eps, dtype);
              ops::layer_norm_backward(y, x, w, mean, rstd);
            }};
  }
  Case swiglu() const {
    const at::Tensor x = rand({B_, T_, 2 * c_.intermediate_size}),
                     y = rand({B_, T_, c_.intermediate_size});
    return {"swiglu", bytes_of({x, y, x, y, x}), [=] {
              ops::swiglu_forward(x);
              ops::swiglu_backward(y, x);
            }};
  }

  const ModelConfig& c_;
  int64_t B_, T_;
  at::ScalarType dtype_;
  at::Tensor log_decay_;
};

struct Timing {
  double fused = 1e30, portable = 1e30, limit = 0;  // seconds; bytes a second
};

Timing time_case(const Case& one, int rounds) {
  Timing best;
  const auto once = [&](bool fused) {
    ops::set_fused_kernels(fused);
    const Stopwatch watch;
    one.run();
    return watch.seconds();
  };
  once(true), once(false);
  for (int round = 0; round < rounds; ++round) {
    best.fused = std::min(best.fused, once(true));
    best.portable = std::min(best.portable, once(false));
    best.limit = std::max(
        best.limit, one.in_place ? update_bandwidth(at::get_num_threads()) : copy_bandwidth());
  }
  ops::set_fused_kernels(true);
  return best;
}

void run(const BenchOpsOptions& options) {
  ops::install_caching_allocator();
  const ModelConfig config = ModelConfig::load(options.config);
  Cases cases(config, options);
  std::vector<Case> list = cases.all();
  for (const int64_t slots : {1, 4, 16, 64}) list.push_back(cases.gla_step(slots));
  Json table = Json::object();
  std::string text = strf("%-20s %10s %10s %7s %9s %9s %7s\n", "operator", "fused ms", "portable",
                          "ratio", "GB/s", "limit", "share");
  for (const Case& one : list) {
    const Timing t = time_case(one, options.rounds);
    const double rate = one.bytes / t.fused;
    table[one.name] = {{"fused_seconds", t.fused},
                       {"portable_seconds", t.portable},
                       {"bytes_per_second", rate},
                       {"limit_bytes_per_second", t.limit},
                       {"limit", one.in_place ? "updating in place" : "copy"}};
    text += strf("%-20s %10.3f %10.3f %6.1fx %9.1f %9.1f %6.1f%%\n", one.name.c_str(),
                 t.fused * 1e3, t.portable * 1e3, t.portable / t.fused, rate / 1e9, t.limit / 1e9,
                 100 * rate / t.limit);
  }
  print_now(options.json ? to_text(table) : text);
}

}  // namespace

void add_bench_ops(CLI::App& bench) {
  CLI::App* const app = bench.add_subcommand(
      "op",
      "The operators forward and backward: fused, portable, and beside a copy of the bytes "
      "(states: beside memory updated in place)");
  const auto options = std::make_shared<BenchOpsOptions>();
  app->add_option("--config", options->config, "A model's config.json, for the shapes")
      ->required()
      ->type_name("FILE");
  app->add_option("--seq-length", options->seq_length, "Tokens of a row")
      ->check(above_zero())
      ->capture_default_str();
  app->add_option("--batch", options->batch, "Rows")->check(above_zero())->capture_default_str();
  app->add_option("--dtype", options->dtype, "auto, float32 or bfloat16")->capture_default_str();
  app->add_option("--rounds", options->rounds, "How often")
      ->check(above_zero())
      ->capture_default_str();
  app->add_flag("--json", options->json, "Print one JSON object");
  app->footer("Example:\n  laplace bench op --config configs/laplace-160m.json --dtype bfloat16");
  app->callback([options] { run(*options); });
}

}  // namespace laplace::cli
