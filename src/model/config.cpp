// See config.h.
#include "model/config.h"

#include <cmath>
#include <filesystem>
#include <numbers>

#include "base/error.h"

namespace laplace {

namespace {

constexpr const char* kModelType = "laplace";
constexpr const char* kArchitecture = "LaplaceForCausalLM";

// What transformers writes into any config.json and that changes nothing here.
constexpr const char* kHarmless[] = {
    "architectures",
    "transformers_version",
    "auto_map",
    "use_cache",
    "initializer_range",
    "_name_or_path",
    "pad_token_id",
    "is_encoder_decoder",
    "output_hidden_states",
    "output_attentions",
    "return_dict",
    "torchscript",
    "id2label",
    "label2id",
    "problem_type",
    "max_position_embeddings",
    "model_max_length",
    "chunk_size_feed_forward",
    "_attn_implementation_autoset",
    "dtype",
};

// A token id, absent or null as -1.
int64_t token_id(JsonFields& fields, const std::string& name, int64_t vocab_size) {
  if (fields.any(name).is_null()) return -1;
  return fields.integer(name, 0, vocab_size - 1);
}

void read_type(JsonFields& fields, const std::string& source) {
  const std::string type = fields.text("model_type", kModelType);
  if (type != kModelType) {
    fail_input(source, " describes a model of the type ", quoted(type),
               ", but only \"laplace\" models can be opened; choose another model");
  }
  if (fields.boolean("tie_word_embeddings", false)) {
    fail_input(source,
               ": \"tie_word_embeddings\" is true, but embedding and head are separate "
               "matrices here; set it to false");
  }
}

std::string read_dtype(JsonFields& fields, const std::string& source) {
  // transformers 5 writes "dtype" for what was "torch_dtype".
  const std::string name =
      fields.has("dtype") && !fields.has("torch_dtype") ? "dtype" : "torch_dtype";
  std::string dtype = fields.any(name).is_null() ? "float32" : fields.text(name);
  if (dtype != "float32" && dtype != "bfloat16") {
    fail_input(source, ": the field ", quoted(name), " is ", quoted(dtype),
               ", but must be \"float32\" or \"bfloat16\"");
  }
  return dtype;
}

// What no single field shows.
void check_together(const ModelConfig& config, const std::string& source) {
  if (config.num_heads % config.num_norm_tiers != 0) {
    fail_input(source, ": num_heads is ", config.num_heads, ", which does not divide into ",
               config.num_norm_tiers, " tiers of equal size; change num_norm_tiers");
  }
  if (config.half_life_min > config.half_life_max) {
    fail_input(source, ": half_life_min (", config.half_life_min, ") is above half_life_max (",
               config.half_life_max, "); exchange them");
  }
  // In double, where these products cannot overflow; below the bounds int64 cannot either.
  const auto d = [](int64_t value) { return static_cast<double>(value); };
  const double width = d(config.hidden_size);
  const double per_layer =
      width * (d(config.num_heads) * 3 * d(config.head_k_dim + config.head_v_dim) +
               3 * d(config.intermediate_size) + d(config.conv_kernel) + 2);
  const double parameters =
      d(config.num_hidden_layers) * per_layer + 2 * d(config.vocab_size) * width;
  if (parameters > 0x1p43) {
    fail_input(source, " describes a model of ", human_count(parameters),
               " parameters, more than can be addressed; check vocab_size, hidden_size, num_heads, "
               "head_k_dim, head_v_dim and intermediate_size");
  }
  const double state = 4 * d(config.num_hidden_layers) *
                       (d(config.num_heads) * d(config.head_k_dim) * d(config.head_v_dim) +
                        width * d(config.conv_kernel));
  if (state > 1e12) {
    fail_input(source, " describes a model with ", human_bytes(state),
               " of state per sequence; reduce num_heads, head_k_dim or head_v_dim");
  }
}

}  // namespace

ModelConfig ModelConfig::load(const Path& path) {
  const Path file = std::filesystem::is_directory(path) ? path / "config.json" : path;
  return from_json(load_json(file, {.max_bytes = 1 << 20}), file.string());
}

ModelConfig ModelConfig::from_json(const Json& json, const std::string& source) {
  JsonFields fields(json, source);
  read_type(fields, source);
  ModelConfig config;
  config.vocab_size = fields.integer("vocab_size", 2, 1 << 24);
  config.hidden_size = fields.integer("hidden_size", 1, 1 << 20);
  config.num_hidden_layers = fields.integer("num_hidden_layers", 1, 4096);
  config.num_heads = fields.integer("num_heads", 1, 1 << 14);
  config.head_k_dim = fields.integer("head_k_dim", 1, 1 << 16);
  config.head_v_dim = fields.integer("head_v_dim", 1, 1 << 16);
  config.intermediate_size = fields.integer("intermediate_size", 1, 1 << 24);
  config.conv_kernel = fields.integer("conv_kernel", 1, 64, config.conv_kernel);
  config.chunk_size = fields.integer("chunk_size", 1, 1 << 16, config.chunk_size);
  config.half_life_min = fields.number("half_life_min", 1e-3, 1e9, config.half_life_min);
  config.half_life_max = fields.number("half_life_max", 1e-3, 1e9, config.half_life_max);
  config.num_norm_tiers = fields.integer("num_norm_tiers", 1, 1 << 14, config.num_norm_tiers);
  config.norm_eps = fields.number("norm_eps", 1e-12, 1, config.norm_eps);
  config.bos_token_id = token_id(fields, "bos_token_id", config.vocab_size);
  config.eos_token_id = token_id(fields, "eos_token_id", config.vocab_size);
  config.torch_dtype = read_dtype(fields, source);
  for (const char* name : kHarmless) fields.ignore(name);
  fields.finish();
  check_together(config, source);
  return config;
}

Json ModelConfig::to_json() const {
  Json json = {{"model_type", kModelType},
               {"architectures", {kArchitecture}},
               {"vocab_size", vocab_size},
               {"hidden_size", hidden_size},
               {"num_hidden_layers", num_hidden_layers},
               {"num_heads", num_heads},
               {"head_k_dim", head_k_dim},
               {"head_v_dim", head_v_dim},
               {"intermediate_size", intermediate_size},
               {"conv_kernel", conv_kernel},
               {"chunk_size", chunk_size},
               {"half_life_min", half_life_min},
               {"half_life_max", half_life_max},
               {"num_norm_tiers", num_norm_tiers},
               {"norm_eps", norm_eps}};
  if (bos_token_id >= 0) json["bos_token_id"] = bos_token_id;
  if (eos_token_id >= 0) json["eos_token_id"] = eos_token_id;
  json["torch_dtype"] = torch_dtype;
  return json;
}

std::vector<double> ModelConfig::half_lives() const {
  std::vector<double> out;
  for (int64_t h = 0; h < num_heads; ++h) {
    const double share = num_heads > 1 ? double(h) / double(num_heads - 1) : 0;
    out.push_back(half_life_min * std::pow(half_life_max / half_life_min, share));
  }
  return out;
}

std::vector<float> ModelConfig::log_decays() const {
  std::vector<float> out;
  for (const double half_life : half_lives()) {
    out.push_back(static_cast<float>(-std::numbers::ln2 / half_life));
  }
  return out;
}

int64_t ModelConfig::muon_parameters() const {
  const int64_t rows = qkvg_rows() + value_width() + 3 * intermediate_size;
  return num_hidden_layers * hidden_size * rows;
}

int64_t ModelConfig::adamw_parameters() const {
  const int64_t per_layer =
      hidden_size * (2 + conv_kernel) + num_heads * head_k_dim + num_norm_tiers * head_v_dim;
  return num_hidden_layers * per_layer + hidden_size + 2 * vocab_size * hidden_size;
}

int64_t ModelConfig::state_bytes() const {
  const int64_t per_layer = num_heads * head_k_dim * head_v_dim + conv_kernel * hidden_size;
  return num_hidden_layers * per_layer * int64_t{sizeof(float)};
}

int64_t ModelConfig::kv_cache_bytes(int64_t tokens) const {
  return 2 * num_hidden_layers * hidden_size * tokens * 2;
}

}  // namespace laplace
