// inspect: what a model, a run, a safetensors file or a configuration holds.
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/strings.h"
#include "cli/verbs.h"
#include "model/config.h"
#include "model/model_directory.h"
#include "model/parameters.h"
#include "model/weight_files.h"

namespace laplace::cli {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kCacheTokens = 8192;  // the context at which the published comparison is made

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string out;
  for (const int64_t size : shape) out += (out.empty() ? "" : " x ") + with_commas(size);
  return out.empty() ? "scalar" : out;
}

// A name out of a file, safe to print on a terminal.
std::string printable(const std::string& name) {
  return without_controls(name) == name ? name : quoted(name);
}

// ---- the configuration ----

int64_t count_muon_matrices(const std::vector<ParameterSpec>& table) {
  return std::count_if(table.begin(), table.end(),
                       [](const ParameterSpec& spec) { return spec.role == ParameterRole::kMuon; });
}

double cache_ratio(const ModelConfig& config) {
  return double(config.kv_cache_bytes(kCacheTokens)) / double(config.state_bytes());
}

const char* role_name(ParameterRole role) {
  return role == ParameterRole::kMuon ? "Muon" : "AdamW";
}

Json config_json(const ModelConfig& config) {
  const auto table = parameter_table(config);
  Json parameters = Json::array();
  for (const ParameterSpec& spec : table) {
    parameters.push_back({{"name", spec.name},
                          {"shape", spec.shape},
                          {"optimizer", role_name(spec.role)},
                          {"parameters", spec.numel()}});
  }
  const auto half_lives = config.half_lives();
  const auto log_decays = config.log_decays();
  Json heads = Json::array();
  for (size_t h = 0; h < half_lives.size(); ++h) {
    heads.push_back({{"head", h},
                     {"tier", config.tier_of_head(static_cast<int64_t>(h))},
                     {"half_life", half_lives[h]},
                     {"decay", std::exp(double(log_decays[h]))}});
  }
  return {{"config", config.to_json()},
          {"parameters",
           {{"total", config.num_parameters()},
            {"muon", config.muon_parameters()},
            {"adamw", config.adamw_parameters()},
            {"muon_matrices", count_muon_matrices(table)}}},
          {"state_bytes", config.state_bytes()},
          {"kv_cache",
           {{"tokens", kCacheTokens},
            {"bytes", config.kv_cache_bytes(kCacheTokens)},
            {"ratio", cache_ratio(config)}}},
          {"heads", std::move(heads)},
          {"tensors", std::move(parameters)}};
}

void print_line(const char* label, const std::string& text) {
  std::cout << strf("%-12s %s\n", label, text.c_str());
}

void print_sizes(const ModelConfig& config, const std::vector<ParameterSpec>& table) {
  const auto n = [](int64_t value) { return with_commas(value); };
  print_line("layers", cat(n(config.num_hidden_layers), " of width ", n(config.hidden_size), ", ",
                           n(config.num_heads), " heads with a state of ", config.head_k_dim, " x ",
                           config.head_v_dim, ", feed-forward ", n(config.intermediate_size)));
  print_line("vocabulary", config.eos_token_id < 0 ? n(config.vocab_size)
                                                   : cat(n(config.vocab_size), " (end of text ",
                                                         config.eos_token_id, ")"));
  const int64_t rest = config.adamw_parameters();
  print_line(
      "parameters",
      cat(n(config.num_parameters()), " = ", n(config.muon_parameters()), " + ",
          rest < 1'000'000 ? n(rest) : strf("%.2f M", double(rest) / 1e6), " (Muon + AdamW)"));
  print_line("matrices", cat(count_muon_matrices(table), " Muon matrices"));
  print_line("state",
             cat(n(config.state_bytes()), " bytes (", human_bytes(double(config.state_bytes())),
                 ") a sequence, whatever the context"));
  print_line("KV cache",
             cat(n(config.kv_cache_bytes(kCacheTokens)),
                 " bytes for a transformer of this width and depth at ", n(kCacheTokens),
                 " tokens in bfloat16: ", strf("%.2f", cache_ratio(config)), " × the state"));
}

void print_heads(const ModelConfig& config) {
  const auto half_lives = config.half_lives();
  const auto log_decays = config.log_decays();
  std::cout << strf("\n%6s %6s %16s %12s\n", "head", "tier", "half-life", "decay");
  for (size_t h = 0; h < half_lives.size(); ++h) {
    std::cout << strf("%6zu %6d %9.2f tokens %12.8f\n", h,
                      int(config.tier_of_head(static_cast<int64_t>(h))), half_lives[h],
                      std::exp(double(log_decays[h])));
  }
}

void print_config(const ModelConfig& config) {
  const auto table = parameter_table(config);
  print_sizes(config, table);
  print_heads(config);
  std::cout << strf("\n%-28s %-20s %-6s %16s\n", "tensor", "shape", "by", "parameters");
  for (const ParameterSpec& spec : table) {
    if (spec.layer > 0) continue;  // all layers are alike
    std::cout << strf("%-28s %-20s %-6s %16s\n", spec.name.c_str(), shape_text(spec.shape).c_str(),
                      role_name(spec.role), with_commas(spec.numel()).c_str());
  }
  if (config.num_hidden_layers > 1) {
    std::cout << "layers 1 to " << config.num_hidden_layers - 1 << " are like layer 0\n";
  }
}

// ---- tensors in files ----

struct Statistics {
  double min = std::numeric_limits<double>::infinity();  // of the finite values
  double max = -std::numeric_limits<double>::infinity();
  double sum = 0;
  int64_t finite = 0;
  int64_t non_finite = 0;

  double mean() const { return finite > 0 ? sum / double(finite) : 0; }
};

// Piece by piece, so that no tensor is ever copied whole.
Statistics measure(const at::Tensor& tensor) {
  constexpr int64_t kPiece = 1 << 18;
  Statistics out;
  const at::Tensor flat = tensor.view({-1});
  for (int64_t at = 0; at < flat.numel(); at += kPiece) {
    const int64_t count = std::min(kPiece, flat.numel() - at);
    const at::Tensor piece = flat.narrow(0, at, count).to(at::kDouble);
    const auto* const values = piece.const_data_ptr<double>();
    for (int64_t i = 0; i < count; ++i) {
      if (!std::isfinite(values[i])) {
        ++out.non_finite;
        continue;
      }
      out.min = std::min(out.min, values[i]);
      out.max = std::max(out.max, values[i]);
      out.sum += values[i];
      ++out.finite;
    }
  }
  return out;
}

Json statistics_json(const Statistics& s) {
  if (s.finite == 0) return {{"non_finite", s.non_finite}};
  return {{"min", s.min}, {"max", s.max}, {"mean", s.mean()}, {"non_finite", s.non_finite}};
}

Json weights_json(const WeightFiles& weights, bool stats) {
  Json files = Json::array();
  for (const SafetensorsFile& file : weights.files()) {
    Json tensors = Json::array();
    for (const TensorInfo& info : file.tensors()) {
      tensors.push_back({{"name", info.name},
                         {"dtype", dtype_name(info.dtype)},
                         {"shape", info.shape},
                         {"bytes", info.bytes()}});
      if (stats) tensors.back()["stats"] = statistics_json(measure(file.tensor(info.name)));
    }
    files.push_back({{"path", file.path().string()},
                     {"metadata", file.metadata()},
                     {"tensors", std::move(tensors)}});
  }
  return files;
}

void print_tensor(const SafetensorsFile& file, const TensorInfo& info, bool stats) {
  std::cout << strf("%-36s %-8s %-22s %16s", printable(info.name).c_str(),
                    std::string(dtype_name(info.dtype)).c_str(), shape_text(info.shape).c_str(),
                    with_commas(static_cast<int64_t>(info.bytes())).c_str());
  if (stats) {
    const Statistics s = measure(file.tensor(info.name));
    std::cout << (s.finite > 0 ? strf(" %12.5g %12.5g %12.5g", s.min, s.max, s.mean())
                               : strf(" %12s %12s %12s", "-", "-", "-"))
              << strf(" %10s", with_commas(s.non_finite).c_str());
  }
  std::cout << "\n";
}

void print_weights(const WeightFiles& weights, bool stats) {
  for (const SafetensorsFile& file : weights.files()) {
    uint64_t bytes = 0;
    for (const TensorInfo& info : file.tensors()) bytes += info.bytes();
    std::cout << file.path().string() << ": " << file.tensors().size() << " tensors, "
              << human_bytes(double(bytes)) << "\n";
    for (const auto& [key, value] : file.metadata()) {
      std::cout << "  " << quoted(key) << ": " << quoted(value) << "\n";
    }
    std::cout << strf("\n%-36s %-8s %-22s %16s", "tensor", "dtype", "shape", "bytes");
    if (stats) std::cout << strf(" %12s %12s %12s %10s", "min", "max", "mean", "not finite");
    std::cout << "\n";
    for (const TensorInfo& info : file.tensors()) print_tensor(file, info, stats);
  }
}

// ---- the verb ----

struct Arguments {
  std::string path;
  std::string config;
  bool json = false;
  bool stats = false;
};

void inspect_config(const Path& path, bool json) {
  const ModelConfig config = ModelConfig::load(path);
  json ? void(std::cout << to_text(config_json(config))) : print_config(config);
}

void inspect_weights(const Path& path, const Arguments& arguments) {
  const WeightFiles weights(path);
  if (arguments.json) {
    std::cout << to_text({{"files", weights_json(weights, arguments.stats)}});
  } else {
    print_weights(weights, arguments.stats);
  }
}

void inspect_model(const Path& path, const Arguments& arguments) {
  const Path directory = open_model_directory(path);
  const ModelConfig config = ModelConfig::load(directory);
  load_weights(directory, config);  // refuses weights that are not this configuration's
  const WeightFiles weights(directory);
  if (arguments.json) {
    Json report = {{"directory", directory.string()}};
    report.update(config_json(config));
    report["files"] = weights_json(weights, arguments.stats);
    std::cout << to_text(report);
    return;
  }
  print_line("model", directory.string());
  print_sizes(config, parameter_table(config));
  print_heads(config);
  std::cout << "\n";
  print_weights(weights, arguments.stats);
}

// Refuses what another verb shows, naming that verb.
void refuse_other_kinds(const Path& path) {
  const std::string name = path.filename().string();
  const auto holds = [&](const char* file) { return fs::exists(path / file); };
  const bool shard =
      path.extension() == ".bin" && (name.starts_with("train_") || name.starts_with("val_"));
  if (shard || name == "dataset.json" || holds("dataset.json") || holds("train_000000.bin")) {
    fail_input(path.string(), " holds token shards; `laplace data info DIR` shows them");
  }
  const bool alone = !holds("config.json") && (holds("tokenizer.json") || holds("vocab.bpe"));
  if (alone || name == "tokenizer.json" || name == "vocab.bpe" || name == "encoder.json") {
    fail_input(path.string(),
               " is a tokenizer; `laplace tokenizer encode --tokenizer DIR` shows "
               "how it cuts a text");
  }
}

// A model's, not one of the other .json files beside it.
bool is_config(const Path& path) {
  const Json json = load_json(path);
  return json.is_object() && (json.contains("vocab_size") || json.contains("hidden_size"));
}

void run(const Arguments& arguments) {
  if (arguments.path.empty() == arguments.config.empty()) {
    fail_input("inspect needs either a DIR or FILE, or --config CFG.json; name one");
  }
  if (!arguments.config.empty()) return inspect_config(arguments.config, arguments.json);
  const Path path = arguments.path;
  if (!fs::exists(path)) fail_input(path.string(), " does not exist; check the path");
  if (path.extension() == ".safetensors") return inspect_weights(path, arguments);
  refuse_other_kinds(path);
  if (fs::is_directory(path)) return inspect_model(path, arguments);
  if (path.extension() == ".json" && is_config(path)) {
    return inspect_config(path, arguments.json);
  }
  fail_input(path.string(),
             " is none of what inspect shows: a model or run directory, a .safetensors file (in a "
             "directory for its shards), a config.json; check the path");
}

}  // namespace

void add_inspect(CLI::App& program) {
  CLI::App* const app = program.add_subcommand(
      "inspect", "Show what a model, a run, a safetensors file or a configuration holds");
  const auto arguments = std::make_shared<Arguments>();
  app->add_option("path", arguments->path,
                  "A model directory, a run (its latest checkpoint), a .safetensors file or a "
                  "config.json")
      ->type_name("DIR|FILE");
  app->add_option("--config", arguments->config,
                  "A configuration alone: its parameters, state and half-lives")
      ->type_name("CFG.json");
  app->add_flag("--json", arguments->json, "Print the result as JSON");
  app->add_flag("--stats", arguments->stats,
                "Read all values: smallest, largest, mean, and how many are not finite");
  app->footer(
      "Examples:\n"
      "  laplace inspect --config configs/laplace-3b.json\n"
      "  laplace inspect runs/demo --stats\n"
      "  laplace inspect model.safetensors --json");
  app->callback([arguments] { run(*arguments); });
}

}  // namespace laplace::cli
