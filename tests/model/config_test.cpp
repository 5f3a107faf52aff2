// config.json: what is read, what is refused, and the sizes of the published model.
#include "model/config.h"

#include <gmock/gmock.h>

#include <cmath>

#include "base/error.h"
#include "support/golden.h"
#include "support/scratch.h"

namespace laplace {
namespace {

using ::testing::AllOf;
using testing::golden_path;
using testing::GoldenFile;
using ::testing::HasSubstr;
using testing::ScratchDirectory;

Path config_path(const std::string& name) {
  return Path(LAPLACE_SOURCE_DIR) / "configs" / (name + ".json");
}

// The sentence with which a change of the tiny configuration is refused, "" if it is not.
std::string refusal(const std::function<void(Json&)>& change) {
  Json json = ModelConfig::load(config_path("tiny")).to_json();
  change(json);
  try {
    ModelConfig::from_json(json, "config.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
    return error.what();
  }
  return "";
}

std::string refusal(const std::string& field, const Json& value) {
  return refusal([&](Json& json) { json[field] = value; });
}

TEST(ConfigTest, ReadsAFileAndAModelDirectory) {
  const ModelConfig config = ModelConfig::load(golden_path("tiny"));
  EXPECT_EQ(config, ModelConfig::load(golden_path("tiny/config.json")));
  EXPECT_EQ(config.vocab_size, 97);
  EXPECT_EQ(config.head_v_dim, 12);
  EXPECT_EQ(config.eos_token_id, 96);
  EXPECT_EQ(config.torch_dtype, "float32");
  EXPECT_EQ(ModelConfig::load(golden_path("tiny_bf16")).torch_dtype, "bfloat16");
}

TEST(ConfigTest, JsonRoundTripKeepsEveryField) {
  ModelConfig config = ModelConfig::load(golden_path("tiny"));
  EXPECT_EQ(ModelConfig::from_json(config.to_json(), "config.json"), config);
  EXPECT_EQ(config.to_json(), load_json(golden_path("tiny/config.json")));
  config.bos_token_id = config.eos_token_id = -1;
  config.half_life_min = 0.1;
  EXPECT_EQ(ModelConfig::from_json(parse_json(to_text(config.to_json()), "text"), "text"), config);
}

TEST(ConfigTest, PassesOverWhatHuggingFaceWrites) {
  EXPECT_EQ(refusal([](Json& json) {
              json["transformers_version"] = "5.0.0";
              json["auto_map"] = {{"AutoConfig", "configuration_laplace.LaplaceConfig"}};
              json["use_cache"] = true;
              json["tie_word_embeddings"] = false;
              json["initializer_range"] = 0.02;
              json["pad_token_id"] = nullptr;
              json["bos_token_id"] = nullptr;
            }),
            "");
}

TEST(ConfigTest, TakesDtypeForTorchDtype) {
  Json json = ModelConfig::load(config_path("tiny")).to_json();
  json.erase("torch_dtype");
  json["dtype"] = "bfloat16";
  EXPECT_EQ(ModelConfig::from_json(json, "config.json").torch_dtype, "bfloat16");
}

TEST(ConfigTest, RefusesUnknownFieldsWithTheNearestName) {
  EXPECT_THAT(refusal("num_layer_heads", 3), HasSubstr("num_layer_heads"));
  EXPECT_THAT(refusal("hiden_size", 64),
              AllOf(HasSubstr("config.json"), HasSubstr("did you mean \"hidden_size\"?")));
}

TEST(ConfigTest, RefusesMissingFields) {
  for (const char* name : {"vocab_size", "hidden_size", "num_hidden_layers", "num_heads",
                           "head_k_dim", "head_v_dim", "intermediate_size"}) {
    EXPECT_THAT(refusal([&](Json& json) { json.erase(name); }), HasSubstr(name));
  }
}

TEST(ConfigTest, RefusesImpossibleFields) {
  for (const char* name :
       {"vocab_size", "hidden_size", "num_hidden_layers", "num_heads", "head_k_dim", "head_v_dim",
        "intermediate_size", "conv_kernel", "chunk_size", "num_norm_tiers"}) {
    for (const Json& value : {Json(0), Json(-4), Json(2.5), Json("8"), Json(int64_t{1} << 40),
                              Json(uint64_t{1} << 63), Json(nullptr)}) {
      EXPECT_THAT(refusal(name, value), HasSubstr(name)) << value;
    }
  }
  for (const char* name : {"half_life_min", "half_life_max", "norm_eps"}) {
    for (const Json& value : {Json(0), Json(-1.0), Json(1e300), Json("1"), Json(true)}) {
      EXPECT_THAT(refusal(name, value), HasSubstr(name)) << value;
    }
  }
}

TEST(ConfigTest, RefusesFieldsThatDoNotGoTogether) {
  EXPECT_THAT(refusal("num_heads", 6), HasSubstr("does not divide into 4 tiers"));
  EXPECT_THAT(refusal("num_norm_tiers", 8), HasSubstr("does not divide into 8 tiers"));
  EXPECT_THAT(refusal("half_life_min", 4096), HasSubstr("above half_life_max"));
  EXPECT_THAT(refusal("bos_token_id", 512), HasSubstr("bos_token_id"));
  EXPECT_THAT(refusal("eos_token_id", -1), HasSubstr("eos_token_id"));
  EXPECT_THAT(refusal("model_type", "llama"), HasSubstr("only \"laplace\" models"));
  EXPECT_THAT(refusal("tie_word_embeddings", true), HasSubstr("separate"));
  EXPECT_THAT(refusal("torch_dtype", "float16"), HasSubstr("\"float32\" or \"bfloat16\""));
}

TEST(ConfigTest, RefusesSizesThatWouldOverflow) {
  const auto large = [](Json& json) {
    json["hidden_size"] = 1 << 20;
    json["num_hidden_layers"] = 4096;
    json["num_heads"] = 1 << 14;
    json["intermediate_size"] = 1 << 24;
  };
  EXPECT_THAT(refusal(large), HasSubstr("more than can be addressed"));
  EXPECT_THAT(refusal([](Json& json) {
                json["head_k_dim"] = 1 << 16;
                json["head_v_dim"] = 1 << 16;
                json["num_heads"] = 64;
              }),
              HasSubstr("of state per sequence"));
}

TEST(ConfigTest, RefusesFilesThatAreNoConfiguration) {
  const ScratchDirectory dir;
  EXPECT_THROW(ModelConfig::load(dir.path()), Error);
  write_file_atomic(dir / "config.json", "[1, 2]");
  EXPECT_THROW(ModelConfig::load(dir.path()), Error);
  write_file_atomic(dir / "config.json", std::string(2 << 20, ' '));
  EXPECT_THROW(ModelConfig::load(dir.path()), Error);
}

TEST(ConfigTest, Laplace3bHasThePublishedSizes) {
  const ModelConfig config = ModelConfig::load(config_path("laplace-3b"));
  EXPECT_EQ(config.muon_parameters(), 2'717'908'992);
  EXPECT_EQ(config.adamw_parameters(), 309'568'512);
  EXPECT_EQ(config.num_parameters(), 3'027'477'504);
  EXPECT_EQ(config.state_bytes(), 29'491'200);
  EXPECT_EQ(config.kv_cache_bytes(8192), 2'415'919'104);
  EXPECT_DOUBLE_EQ(double(config.kv_cache_bytes(8192)) / double(config.state_bytes()), 81.92);
}

TEST(ConfigTest, ShippedConfigurationsOpen) {
  EXPECT_EQ(ModelConfig::load(config_path("laplace-160m")).num_parameters(), 162'266'880);
  EXPECT_EQ(ModelConfig::load(config_path("laplace-350m")).num_parameters(), 352'203'776);
  EXPECT_GT(ModelConfig::load(config_path("demo")).num_parameters(), 0);
}

TEST(ConfigTest, TiersGroupNeighbouringHeads) {
  ModelConfig config;
  config.num_heads = 6;
  config.num_norm_tiers = 2;
  std::vector<int64_t> tiers;
  for (int64_t h = 0; h < 6; ++h) tiers.push_back(config.tier_of_head(h));
  EXPECT_THAT(tiers, ::testing::ElementsAre(0, 0, 0, 1, 1, 1));
}

TEST(ConfigTest, DecaysAreTheGoldenOnes) {
  const GoldenFile golden("decay.safetensors");
  for (const std::string& name : golden.cases()) {
    SCOPED_TRACE(name);
    ModelConfig config;
    config.half_life_min = golden.number(name, "half_life_min");
    config.half_life_max = golden.number(name, "half_life_max");
    const at::Tensor half_lives = golden.tensor(name, "half_life");
    const at::Tensor log_decays = golden.tensor(name, "log_decay");
    config.num_heads = half_lives.numel();
    for (int64_t h = 0; h < config.num_heads; ++h) {
      const double half_life = half_lives.const_data_ptr<double>()[h];
      EXPECT_NEAR(config.half_lives()[size_t(h)], half_life, 1e-14 * half_life);
      const float want = log_decays.const_data_ptr<float>()[h];
      const float got = config.log_decays()[size_t(h)];
      EXPECT_GE(got, std::nextafterf(want, -INFINITY));
      EXPECT_LE(got, std::nextafterf(want, INFINITY));
    }
  }
}

}  // namespace
}  // namespace laplace
