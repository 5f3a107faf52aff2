// Opening models: shards and their index, weights against the configuration, manifests, and which
// checkpoint of a run is taken.
#include "model/model_directory.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <filesystem>

#include "base/error.h"
#include "base/xxh64.h"
#include "model/parameters.h"
#include "model/weight_files.h"
#include "support/golden.h"
#include "support/scratch.h"

namespace laplace {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::golden_path;
using ::testing::HasSubstr;
using testing::ScratchDirectory;

// The sentence with which `action` refuses its input, "" if it does not.
template <class Action>
std::string refusal(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
    return error.what();
  }
  return "";
}

NamedTensor ones(const std::string& name, int64_t count) {
  return {name, at::arange(count, at::kFloat)};
}

void write(const Path& path, const std::vector<NamedTensor>& tensors) {
  write_safetensors(path, tensors);
}

void write_index(const Path& directory, const Json& weight_map) {
  write_file_atomic(directory / "model.safetensors.index.json",
                    to_text({{"metadata", {{"total_size", 1}}}, {"weight_map", weight_map}}));
}

class ShardsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    write(dir_ / "a.safetensors", {ones("x", 3), ones("y", 4)});
    write(dir_ / "b.safetensors", {ones("z", 5)});
  }
  std::string refusal_of(const Json& weight_map) {
    write_index(dir_.path(), weight_map);
    return refusal([&] { WeightFiles{dir_.path()}; });
  }
  ScratchDirectory dir_;
};

TEST_F(ShardsTest, OpenAsOne) {
  write_index(dir_.path(),
              {{"x", "a.safetensors"}, {"y", "a.safetensors"}, {"z", "b.safetensors"}});
  const WeightFiles weights(dir_.path());
  EXPECT_THAT(weights.names(), ::testing::ElementsAre("x", "y", "z"));
  EXPECT_TRUE(at::equal(weights.tensor("z"), at::arange(5, at::kFloat)));
  EXPECT_THAT(refusal([&] { weights.tensor("embed"); }), HasSubstr("has no tensor \"embed\""));
}

TEST_F(ShardsTest, IndexMustAgreeWithTheShards) {
  const Json whole = {{"x", "a.safetensors"}, {"y", "a.safetensors"}, {"z", "b.safetensors"}};
  Json wrong = whole;
  wrong["w"] = "b.safetensors";
  EXPECT_THAT(refusal_of(wrong), HasSubstr("does not hold it"));
  wrong = whole;
  wrong["y"] = "b.safetensors";
  EXPECT_THAT(refusal_of(wrong), HasSubstr("does not hold it"));
  wrong = whole;
  wrong.erase("y");
  EXPECT_THAT(refusal_of(wrong), HasSubstr("does not list the tensor \"y\""));
  wrong = whole;
  wrong["z"] = "c.safetensors";
  EXPECT_THAT(refusal_of(wrong), HasSubstr("c.safetensors"));
  write(dir_ / "b.safetensors", {ones("z", 5), ones("x", 1)});
  EXPECT_THAT(refusal_of(whole), HasSubstr("another shard holds too"));
}

TEST_F(ShardsTest, IndexMayNotLeaveTheDirectory) {
  for (const Json& name : {Json("../a.safetensors"), Json("/etc/passwd"), Json(".."), Json("."),
                           Json(""), Json("b\\c"), Json(std::string("a\0b", 3)), Json(7),
                           Json(nullptr), Json::array({"a.safetensors"})}) {
    EXPECT_THAT(refusal_of({{"x", name}}), HasSubstr("plain name")) << name;
  }
  EXPECT_THAT(refusal_of(Json::array()), HasSubstr("weight_map"));
}

TEST(WeightFilesTest, RefusesADirectoryWithoutWeights) {
  const ScratchDirectory dir;
  EXPECT_THAT(refusal([&] { WeightFiles{dir.path()}; }), HasSubstr("has neither"));
  EXPECT_THAT(refusal([&] { WeightFiles{dir / "none.safetensors"}; }), HasSubstr("cannot open"));
}

class LoadWeightsTest : public ::testing::Test {
 protected:
  LoadWeightsTest() : config_(ModelConfig::load(golden_path("tiny"))) {
    const WeightFiles golden(golden_path("tiny"));
    for (const std::string& name : golden.names()) {
      tensors_.emplace_back(name, golden.tensor(name));
    }
  }
  std::string refusal_of_weights() {
    write(dir_ / "model.safetensors", tensors_);
    return refusal([&] { load_weights(dir_.path(), config_); });
  }
  ScratchDirectory dir_;
  ModelConfig config_;
  std::vector<NamedTensor> tensors_;
};

TEST_F(LoadWeightsTest, FollowsTheParameterTable) {
  for (const char* name : {"tiny", "tiny_bf16"}) {
    const auto weights = load_weights(golden_path(name), config_);
    const auto table = parameter_table(config_);
    const WeightFiles golden(golden_path(name));
    ASSERT_EQ(weights.size(), table.size());
    for (size_t i = 0; i < table.size(); ++i) {
      EXPECT_TRUE(at::equal(weights[i], golden.tensor(table[i].name))) << table[i].name;
    }
  }
}

TEST_F(LoadWeightsTest, RefusesWhatDoesNotBelongTogether) {
  EXPECT_EQ(refusal_of_weights(), "");
  const auto good = tensors_;
  tensors_.push_back(ones("layers.2.attn_norm.weight", 32));
  EXPECT_THAT(refusal_of_weights(), HasSubstr("does not have"));
  tensors_ = good;
  tensors_.erase(tensors_.begin());
  EXPECT_THAT(refusal_of_weights(), HasSubstr(cat("lack the tensor \"", good[0].first, "\"")));
  tensors_ = good;
  tensors_[0].second = tensors_[0].second.t();
  EXPECT_THAT(refusal_of_weights(), HasSubstr("has the shape [32, 97], but config.json asks for "
                                              "[97, 32]"));
  tensors_ = good;
  tensors_[0].second = tensors_[0].second.to(at::kHalf);
  EXPECT_THAT(refusal_of_weights(), HasSubstr("has the dtype F16"));
}

TEST(Xxh64Test, AgreesWithTheSpecification) {
  const auto hash = [](std::string_view text, uint64_t seed = 0) {
    return xxh64(std::as_bytes(std::span(text)), seed);
  };
  // Values that the reference implementation prints.
  EXPECT_EQ(hash(""), 0xef46db3751d8e999);
  EXPECT_EQ(hash("a"), 0xd24ec4f1a98c6e5b);
  EXPECT_EQ(hash("abc"), 0x44bc2cf5ad770999);
  EXPECT_EQ(hash("Nobody inspects the spammish repetition"), 0xfbcea83c8a378bf1);
  EXPECT_EQ(hash("xxhash", 20141025), 13067679811253438005U);
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(i % 251);
  EXPECT_EQ(hash(text.substr(0, 31), 1), 0xf031031d65977dfc);
  EXPECT_EQ(hash(text.substr(0, 32), 1), 0xd74e6766ce9dba94);
  EXPECT_EQ(hash(text.substr(0, 39), 1), 0xc628b5965efab20d);
  EXPECT_EQ(hash(text.substr(0, 64), 1), 0x3ce5bdf7575926c0);
  EXPECT_EQ(hash(text, 1), 0x3dd8a345cc37de33);
}

class RunTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const int64_t step : {100, 200, 300}) {
      const Path directory = checkpoint(step);
      fs::create_directories(directory / "optimizer");
      write_file_atomic(directory / "config.json", "{}");
      write_file_atomic(directory / "state.json", cat("{\"step\": ", step, "}"));
      write_file_atomic(directory / "optimizer" / "rank-0.bin", std::string(1000, 'x'));
      write_manifest(directory);
    }
    latest("step-00000300\n");
  }
  Path checkpoint(int64_t step) { return dir_ / "checkpoints" / checkpoint_name(step); }
  void latest(const std::string& text) { write_file_atomic(dir_ / "checkpoints" / "latest", text); }
  Path opened() { return open_model_directory(dir_.path()); }

  ScratchDirectory dir_;
};

TEST_F(RunTest, OpensWhatLatestNames) {
  EXPECT_EQ(opened(), checkpoint(300));
  EXPECT_EQ(open_model_directory(dir_ / "checkpoints"), checkpoint(300));
  EXPECT_EQ(open_model_directory(checkpoint(100)), checkpoint(100));
  latest("step-00000200");
  EXPECT_EQ(opened(), checkpoint(200));
  fs::remove(dir_ / "checkpoints" / "latest");
  fs::create_symlink("step-00000100", dir_ / "checkpoints" / "latest");
  EXPECT_EQ(opened(), checkpoint(100));
}

TEST_F(RunTest, FallsBackWhenLatestIsDamaged) {
  for (const char* text : {"", "nonsense", "../..", "step-1", "step-00000999"}) {
    latest(text);
    EXPECT_EQ(opened(), checkpoint(300)) << text;
  }
  fs::remove(dir_ / "checkpoints" / "latest");
  EXPECT_EQ(opened(), checkpoint(300));
}

TEST_F(RunTest, TakesTheRunForARunThoughItHoldsAConfiguration) {
  write_file_atomic(dir_ / "config.json", "{}");
  EXPECT_EQ(opened(), checkpoint(300));
}

TEST_F(RunTest, FallsBackToTheNewestCompleteCheckpointBefore) {
  fs::remove(checkpoint(300) / "state.json");
  EXPECT_EQ(opened(), checkpoint(200));
  fs::resize_file(checkpoint(200) / "optimizer" / "rank-0.bin", 999);
  EXPECT_EQ(opened(), checkpoint(100));
  write_file_atomic(checkpoint(100) / "manifest.json", "{\"format\": 1");
  EXPECT_THAT(refusal([&] { opened(); }),
              AllOf(HasSubstr("no complete checkpoint"), HasSubstr("state.json is missing")));
}

TEST_F(RunTest, TakesWhatLatestNeverAnnouncedOnlyAsTheLastResort) {
  latest("step-00000200");
  fs::remove(checkpoint(200) / "manifest.json");
  EXPECT_EQ(opened(), checkpoint(100));
  fs::remove_all(checkpoint(100));
  EXPECT_EQ(opened(), checkpoint(300));
}

TEST_F(RunTest, IgnoresUnfinishedDirectories) {
  fs::create_directories(dir_ / "checkpoints" / "step-00000400.tmp");
  fs::create_directories(checkpoint(500));
  latest("garbage");
  EXPECT_EQ(opened(), checkpoint(300));
}

TEST_F(RunTest, RefusesHalfACheckpointNamedDirectly) {
  fs::remove(checkpoint(300) / "state.json");
  EXPECT_THAT(refusal([&] { open_model_directory(checkpoint(300)); }), HasSubstr("is missing"));
}

TEST_F(RunTest, HashesFindWhatSizesDoNot) {
  EXPECT_EQ(manifest_problem(checkpoint(100), true), "");
  write_file_atomic(checkpoint(100) / "optimizer" / "rank-0.bin", std::string(1000, 'y'));
  EXPECT_EQ(manifest_problem(checkpoint(100), false), "");
  EXPECT_THAT(manifest_problem(checkpoint(100), true), HasSubstr("rank-0.bin is damaged"));
  EXPECT_THAT(refusal([&] { verify_manifest(checkpoint(100), true); }), HasSubstr("damaged"));
}

TEST_F(RunTest, ManifestMayNotLeaveTheDirectory) {
  const auto problem = [&](const std::string& name) {
    Json files = {{"config.json", {{"bytes", 2}, {"xxh64", "00"}}}};
    files[name] = {{"bytes", 1}, {"xxh64", "00"}};
    write_file_atomic(checkpoint(100) / "manifest.json",
                      to_text({{"format", 1}, {"files", files}}));
    return manifest_problem(checkpoint(100), false);
  };
  EXPECT_THAT(problem("../step-00000200/config.json"), HasSubstr("is missing"));
  EXPECT_THAT(problem("/etc/passwd"), HasSubstr("is missing"));
}

TEST(ModelDirectoryTest, OpensAModelDirectoryAsItIs) {
  EXPECT_EQ(open_model_directory(golden_path("tiny")), golden_path("tiny"));
}

TEST(ModelDirectoryTest, RefusesOtherPaths) {
  const ScratchDirectory dir;
  EXPECT_THAT(refusal([&] { open_model_directory(dir.path()); }), HasSubstr("neither"));
  EXPECT_THAT(refusal([&] { open_model_directory(dir / "x"); }), HasSubstr("does not exist"));
  EXPECT_THAT(refusal([&] { open_model_directory(golden_path("tiny/config.json")); }),
              HasSubstr("is a file"));
}

TEST(ModelDirectoryTest, CheckpointNamesAreReadAsWritten) {
  EXPECT_EQ(checkpoint_name(100), "step-00000100");
  EXPECT_EQ(checkpoint_step("step-00000100"), 100);
  EXPECT_EQ(checkpoint_step(checkpoint_name(1'234'567'890)), 1'234'567'890);
  for (const char* name : {"", "step-", "step-100", "step--0000001", "step-00000100.tmp",
                           "step-99999999999999999999", "latest"}) {
    EXPECT_EQ(checkpoint_step(name), -1) << name;
  }
}

}  // namespace
}  // namespace laplace
