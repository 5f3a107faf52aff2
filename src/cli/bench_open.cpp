// bench open: how long a model directory takes to open, once its files are in the page cache.
#include <ATen/ops/empty.h>
#include <unistd.h>

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "base/progress.h"
#include "base/threads.h"
#include "cli/bench_engine.h"
#include "cli/checks.h"
#include "cli/model_options.h"
#include "cli/verbs.h"
#include "model/model_directory.h"
#include "model/parameters.h"
#include "model/weight_files.h"
#include "serve/engine/weights.h"

namespace laplace::cli {

namespace {

struct OpenOptions {
  std::string model, config;
  std::string dtype = "auto";
  int threads = 0;
  int64_t rounds = 3;
  bool json = false;
};

Path temporary_directory() {
  std::error_code code;
  const Path path = std::filesystem::temp_directory_path(code);
  if (code) {
    fail_input("TMPDIR is ", quoted(std::getenv("TMPDIR")),
               ", which is no directory; name one, or ", "leave it out");
  }
  return path;
}

// A model directory of random weights in bfloat16, a file for each layer as large models come;
// which goes when this does.
class RandomModel {
 public:
  explicit RandomModel(const Path& config_path)
      : path_(temporary_directory() / cat("laplace-bench-", ::getpid())) {
    const ModelConfig config = ModelConfig::load(config_path);
    const auto source = random_weights(config, 1);
    std::filesystem::create_directories(path_);
    try {
      write_file_atomic(path_ / "config.json", to_text(config.to_json()));
      log_info("writing ", with_commas(config.num_parameters()), " random parameters to ",
               path_.string());
      Json files = Json::object();
      for (int64_t layer = -1; layer < config.num_hidden_layers; ++layer) {
        const std::string name = cat("model-", layer + 1, ".safetensors");
        std::vector<NamedTensor> tensors;
        for (const ParameterSpec& spec : parameter_table(config)) {
          if (spec.layer != layer) continue;
          tensors.emplace_back(spec.name, filled(spec, *source));
          files[spec.name] = name;
          if (stop_requested()) fail("stopped");
        }
        write_safetensors(path_ / name, tensors);
      }
      write_file_atomic(path_ / "model.safetensors.index.json",
                        to_text({{"metadata", Json::object()}, {"weight_map", files}}));
    } catch (...) {
      remove();
      throw;
    }
  }
  ~RandomModel() { remove(); }
  RandomModel(const RandomModel&) = delete;
  RandomModel& operator=(const RandomModel&) = delete;
  const Path& path() const { return path_; }

 private:
  static at::Tensor filled(const ParameterSpec& spec, const WeightSource& source) {
    at::Tensor out = at::empty(spec.shape, at::kBFloat16);
    const bool vector = spec.shape.size() == 1;
    const int64_t n = vector ? spec.numel() : spec.row_size();
    auto* const values = static_cast<uint16_t*>(out.mutable_data_ptr());
    std::vector<float> row(static_cast<size_t>(n));
    for (int64_t r = 0; r < spec.numel() / n; ++r) {
      source.read(spec.name, r, row.data());
      std::ranges::transform(row, values + r * n, [](float value) {
        return uint16_t(std::bit_cast<uint32_t>(value) >> 16);
      });
    }
    return out;
  }
  void remove() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  Path path_;
};

int64_t file_bytes(const Path& directory) {
  int64_t sum = 0;
  const WeightFiles files(directory);
  for (const auto& file : files.files()) sum += int64_t(std::filesystem::file_size(file.path()));
  return sum;
}

void run(const OpenOptions& options) {
  if (options.model.empty() == options.config.empty()) {
    fail_input("give either --model (a model directory) or --config (random weights are written)");
  }
  (void)parse_engine_dtype(options.dtype);  // refused before anything is written
  install_stop_signals();                   // the random model goes, whatever happens
  std::optional<RandomModel> random;
  if (options.model.empty()) random.emplace(options.config);
  const Path directory = open_model_directory(random ? random->path() : Path(options.model));
  const ModelConfig config = ModelConfig::load(directory);
  EngineOptions engine_options;
  engine_options.dtype = parse_engine_dtype(options.dtype);
  engine_options.threads = options.threads;
  engine_options.slots = 1;
  engine_options.quiet = true;
  std::vector<double> seconds;
  std::string engine;
  for (int64_t round = 0; round <= options.rounds; ++round) {
    const Stopwatch watch;
    const auto opened =
        Engine::open(directory, EngineModel{config, std::nullopt, -1}, engine_options);
    seconds.push_back(watch.seconds());
    engine = opened->description();
  }
  const double best = *std::min_element(seconds.begin() + 1, seconds.end());
  const int64_t bytes = file_bytes(directory);
  print_figures({{"engine", engine},
                 {"parameters", config.num_parameters()},
                 {"file_bytes", bytes},
                 {"first_seconds", seconds.front()},
                 {"cached_seconds", best},
                 {"cached_bytes_per_second", double(bytes) / best},
                 {"peak_resident_bytes", peak_resident_bytes()}},
                options.json);
}

}  // namespace

void add_bench_open(CLI::App& bench) {
  CLI::App* const app = bench.add_subcommand(
      "open", "Opening a model: reading and packing its weights (best of rounds)");
  const auto options = std::make_shared<OpenOptions>();
  app->add_option("--model", options->model, "A model directory or a run directory")
      ->type_name("DIR");
  app->add_option(
         "--config", options->config,
         "Or a config.json: random weights are written to the temporary directory, in bfloat16")
      ->type_name("FILE");
  app->add_option("--dtype", options->dtype, "float32, bfloat16, int8, int4, or auto")
      ->capture_default_str();
  app->add_option("--threads", options->threads, "Threads, 0 for all cores")
      ->check(CLI::Range(0, kMostThreads))
      ->capture_default_str();
  app->add_option("--rounds", options->rounds, "How often, after the first")
      ->check(above_zero())
      ->capture_default_str();
  app->add_flag("--json", options->json, "Print one JSON object");
  app->footer("Example:\n  laplace bench open --config configs/laplace-3b.json --dtype int8");
  app->callback([options] { run(*options); });
}

}  // namespace laplace::cli
